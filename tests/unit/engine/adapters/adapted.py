"""Engines with adapters, and requests for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.origin import namespace_of
from engine.config import LoraConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.unit.tiny import make_config

COUNT = 6


def adapted_engine(base: Path, *, lora: LoraConfig | None = None, **settings: Any) -> Engine:
    return Engine(make_config(base, lora=lora or LoraConfig(max_loras=2, max_lora_rank=8), **settings))


def load(engine: Engine, adapter: Path, name: str = "") -> bytes:
    return engine.adapters.add(engine.adapters.read(name or adapter.name, adapter)).digest


def ask(id: int, prompt: list[int], digest: bytes = b"", **sampling: Any) -> Request:
    options = {"max_tokens": COUNT, "ignore_eos": True} | sampling
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
