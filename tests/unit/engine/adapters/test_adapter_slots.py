"""Slots of adapters: none waits for ever, and none holds up others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.origin import namespace_of
from engine.config import LoraConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import AdapterMissing, AdapterRefused
from engine.loop.engine import Engine
from tests.unit.engine.engines import make_engine
from tests.unit.engine.fake_adapters import FakeAdapters, digest_of
from tests.unit.engine.fake_runner import reference

NAMES = ("a", "b", "c", "d")


def engine_of(
    max_loras: int, *, loaded: tuple[str, ...] = NAMES, max_cpu_loras: int = 8, **scheduler: Any
) -> Engine:
    engine = make_engine(
        lora=LoraConfig(max_loras=max_loras, max_cpu_loras=max_cpu_loras),
        num_pages=256,
        bank=FakeAdapters(),
        **scheduler,
    )
    for name in loaded:
        load(engine, name)
    return engine


def load(engine: Engine, name: str) -> tuple[bytes, ...]:
    """Adapters that made room for it."""
    return engine.adapters.add(engine.adapters.read(name, Path(name))).unloaded


def ask(id: int, name: str = "", length: int = 4) -> Request:
    digest = digest_of(name) if name else b""
    return Request(
        id,
        [1, 2, id % 7],
        SamplingParams(max_tokens=length, ignore_eos=True),
        adapter=name,
        adapter_digest=digest,
        namespace=namespace_of(adapter=digest),
    )


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 3),
    asked=st.lists(
        st.tuples(st.sampled_from(["", *NAMES]), st.integers(1, 6), st.integers(0, 3)), max_size=30
    ),
)
def test_every_request_is_answered_by_its_adapter(slots: int, asked: list[tuple[str, int, int]]) -> None:
    """The fake runner refuses a row whose slot has another adapter."""
    engine, requests = engine_of(slots), []
    for number, (name, length, steps) in enumerate(asked, start=1):
        requests.append(ask(number, name, length))
        engine.submit(requests[-1])
        for _ in range(steps):
            engine.step()
    for _ in range(1000):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work
    for request in requests:
        right = reference(
            request.prompt, request.sampling.max_tokens, ignore_eos=True, namespace=request.namespace
        )
        assert request.output == right


def test_a_request_without_a_free_slot_holds_up_no_other() -> None:
    engine = engine_of(1)
    for request in (ask(1, "a", 50), ask(2, "b"), ask(3), ask(4, "", 2)):
        engine.submit(request)
    engine.step()
    assert [request.id for request in engine.scheduler.running] == [1, 3, 4]
    uses = {use.name: (use.on_device, use.running, use.waiting) for use in engine.adapters.uses()}
    assert (uses["a"], uses["b"]) == ((True, 1, 0), (False, 0, 1))


def test_a_stream_of_requests_for_one_adapter_cannot_starve_another() -> None:
    engine, waiting = engine_of(1), ask(1000, "b")
    engine.submit(ask(1, "a", 8))
    engine.step()
    engine.submit(waiting)
    for id in range(2, 60):
        engine.submit(ask(id, "a", 8))
        engine.step()
        if waiting.output:
            break
    assert id < 30, "the slot was not promised"


def test_the_least_recently_used_adapter_makes_room_in_host_memory() -> None:
    engine = engine_of(1, loaded=("a", "b"), max_cpu_loras=2)
    engine.submit(ask(1, "a", 20))
    engine.step()
    assert load(engine, "c") == (digest_of("b"),)
    with pytest.raises(AdapterMissing):
        engine.submit(ask(2, "b"))
    engine.submit(ask(3, "c"))
    with pytest.raises(AdapterRefused, match="requests use all 2 adapters"):
        load(engine, "d")
    with pytest.raises(AdapterRefused, match="1 requests use the adapter a"):
        engine.adapters.unload(digest_of("a"))
    while engine.has_work:
        engine.step()
    assert engine.adapters.unload(digest_of("a")).name == "a"
    assert load(engine, "d") == ()


def test_an_adapter_loaded_again_after_it_was_unloaded_gets_its_slot_anew() -> None:
    engine = engine_of(1, loaded=("a",))
    for _ in range(2):
        request = ask(1, "a")
        engine.submit(request)
        while engine.has_work:
            engine.step()
        engine.adapters.unload(digest_of("a"))
        load(engine, "a")
    bank = engine.runner.adapters
    assert isinstance(bank, FakeAdapters)
    assert bank.slots == {0: digest_of("a")}


def started_order(engine: Engine, requests: list[Request]) -> list[int]:
    """Ids of requests in the order of their first tokens."""
    for request in requests:
        engine.submit(request)
    order: list[int] = []
    for _ in range(10_000):
        if not engine.has_work:
            break
        engine.step()
        order += [request.id for request in requests if request.output and request.id not in order]
    return order


def test_a_tenant_with_many_adapters_leaves_another_its_turn_for_a_slot() -> None:
    engine = engine_of(1, tenant_quantum=3)
    many = [ask(id, "abc"[id % 3]) for id in range(9)]
    for request in many:
        request.tenant = "many"
    one = ask(10, "d")
    one.tenant = "one"
    order = started_order(engine, [*many, one])
    assert order.index(10) <= 4, order


def test_a_request_waits_for_an_adapter_that_is_being_loaded_and_others_go_on() -> None:
    engine = engine_of(1, loaded=("a",))
    digest = digest_of("b")
    assert engine.adapters.expect(digest)
    assert not engine.adapters.expect(digest)
    waiting, others = ask(1, "b"), [ask(2, "a"), ask(3)]
    for request in (waiting, *others):
        engine.submit(request)
    for _ in range(50):
        engine.step()
    assert [len(request.output) for request in (waiting, *others)] == [0, 4, 4]
    with pytest.raises(AdapterRefused, match="being loaded"):
        engine.adapters.unload(digest)
    load(engine, "b")
    assert not engine.adapters.give_up(digest)
    while engine.has_work:
        engine.step()
    assert waiting.output == reference([1, 2, 1], 4, namespace=waiting.namespace)


def test_no_request_is_taken_for_an_adapter_that_does_not_come() -> None:
    engine = engine_of(1, loaded=())
    assert engine.adapters.expect(digest_of("b"))
    assert engine.adapters.give_up(digest_of("b"))
    with pytest.raises(AdapterMissing):
        engine.submit(ask(1, "b"))
