"""A request with an adapter is answered by that adapter or refused, never by the base model."""

from __future__ import annotations

import pytest

from common.origin import namespace_of
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import AdapterMissing, AdapterRefused, UnservableRequest
from rpc.baton.v1 import worker_pb2
from tests.unit.engine.engines import make_engine
from worker.session.convert import adapter_answer, request_from_proto

DIGEST = b"0123456789abcdef"


def request(**origin: str | bytes) -> Request:
    return Request(1, [1, 2, 3], SamplingParams(max_tokens=2), **origin)  # type: ignore[arg-type]


def test_an_adapter_that_is_not_loaded_is_refused() -> None:
    with pytest.raises(AdapterMissing, match="adapter style is not loaded here"):
        make_engine().submit(
            request(adapter="style", adapter_digest=DIGEST, namespace=namespace_of(adapter=DIGEST))
        )


@pytest.mark.parametrize(
    "origin",
    [
        {"adapter": "style"},
        {"adapter_digest": DIGEST, "namespace": namespace_of(adapter=DIGEST)},
        {"adapter": "style", "adapter_digest": DIGEST},
    ],
    ids=["without a digest", "without a name", "in the base model's namespace"],
)
def test_half_an_adapter_is_refused(origin: dict[str, str | bytes]) -> None:
    with pytest.raises(UnservableRequest):
        make_engine().submit(request(**origin))


def test_a_worker_gets_name_and_digest() -> None:
    work = worker_pb2.Work(request_id=1, prompt=[1], adapter="style", adapter_digest=DIGEST)
    got = request_from_proto(work, 0.0)
    assert (got.adapter, got.adapter_digest) == ("style", DIGEST)


def test_an_adapter_that_cannot_be_unloaded_is_an_answer() -> None:
    answer = adapter_answer(lambda: make_engine().adapters.unload(DIGEST))
    assert answer == worker_pb2.AdapterInfo(error=f"no adapter {DIGEST.hex()} is loaded here")
    with pytest.raises(AdapterRefused):
        make_engine().adapters.unload(DIGEST)
