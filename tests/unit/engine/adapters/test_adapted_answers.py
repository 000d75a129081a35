"""Each row of a mixed batch gets the answer of its own adapter, as merged by PEFT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.origin import namespace_of
from engine.config import LoraConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

_COUNT = 6


def adapted_engine(base: Path, *, lora: LoraConfig | None = None, **settings: Any) -> Engine:
    return Engine(make_config(base, lora=lora or LoraConfig(max_loras=2, max_lora_rank=8), **settings))


def load(engine: Engine, adapter: Path, name: str = "") -> bytes:
    return engine.adapters.add(engine.adapters.read(name or adapter.name, adapter)).digest


def ask(id: int, prompt: list[int], digest: bytes = b"", **sampling: Any) -> Request:
    options = {"max_tokens": _COUNT, "ignore_eos": True} | sampling
    return Request(
        id,
        prompt,
        SamplingParams(**options),
        adapter=digest.hex(),
        adapter_digest=digest,
        namespace=namespace_of(adapter=digest),
    )


def answer(engine: Engine, *requests: Request) -> None:
    for request in requests:
        engine.submit(request)
    for _ in range(10_000):
        if not engine.has_work:
            break
        engine.step()
    assert not engine.has_work
    engine.check_pages()


@pytest.mark.parametrize("chunk", [3, 16, 64])
def test_rows_of_a_mixed_batch_get_the_answers_of_their_adapters(tmp_path: Path, chunk: int) -> None:
    base = tmp_path / "base"
    save_tiny_llama(base)
    adapters = [save_adapter(base, tmp_path / f"adapter{k}", k, r=2 + 2 * k) for k in range(3)]
    asked = prompts(2, 21, VOCAB)
    engine = adapted_engine(base, chunk_budget=chunk)
    digests = [b"", *(load(engine, adapter) for adapter in adapters)]
    requests = [
        ask(10 * number + place, prompt, digest)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests)
    ]
    answer(engine, *requests)
    models = [merged(base, adapter) for adapter in (None, *adapters)]
    right = [greedy(model, prompt, _COUNT) for prompt in asked for model in models]
    assert [request.output for request in requests] == right
    assert len({tuple(output) for output in right}) > 4, "the adapters change nothing"
