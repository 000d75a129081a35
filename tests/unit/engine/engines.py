"""Engines on a runner whose memory can be read, and requests for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.kv_groups import ONE_GROUP, KVGroup
from engine.config import LoraConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.kv.manager.reservations import Reservation
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from tests.engine_config import engine_config
from tests.unit.engine.fake_adapters import FakeAdapters
from tests.unit.engine.fake_runner import FakeRunner, FakeSpec, begin, extend, reference


def make_engine(
    hooks: Any = NO_HOOKS,
    groups: tuple[KVGroup, ...] = ONE_GROUP,
    clock: Callable[[], float] = time.monotonic,
    adapters: Sequence[str] = (),
    bank: FakeAdapters | None = None,
    **settings: Any,
) -> Engine:
    """`adapters`: contents of adapters that are loaded; a step can compute with one of them. `bank`: with
    other settings."""
    if adapters:
        settings["lora"], bank = LoraConfig(max_loras=1), FakeAdapters()
    settings = {"page_size": 4, "num_pages": 64, "chunk_budget": 16, "max_running_requests": 8} | settings
    config = engine_config(**settings)
    runner: Any = FakeRunner(
        config.page_size,
        config.num_pages,
        FakeSpec(kv_groups=groups),
        num_state_slots=config.num_state_slots or 0,
        adapters=bank,
        sums=config.sums,
    )
    engine = Engine(config, hooks=hooks, runner=runner, clock=clock)
    for content in adapters:
        engine.adapters.add(engine.adapters.read(content, Path(content)))
    runner.pool = engine.kv.pool
    return engine


def make_request(id: int, prompt: list[int], max_tokens: int = 8, **sampling: Any) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens, **sampling))


def run(engine: Engine, *requests: Request) -> None:
    for request in requests:
        engine.submit(request)
    for _ in range(10_000):
        if not engine.has_work:
            break
        engine.step()
        engine.check_pages()
    assert not engine.has_work
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total


def write(engine: Engine, request: Request, reservation: Reservation, upto: int | None = None) -> None:
    """Write the KV of a prompt that a prefill worker would send. `upto`: only of this many tokens."""
    runner: Any = engine.runner
    digest = begin(request.namespace)
    for position, key in enumerate(request.prompt_keys[:upto]):
        digest = extend(digest, key)
        if position >= reservation.first_token:
            runner.write(reservation.pages, position, digest)
    if request.state is not None:
        runner.states[request.state.slot] = digest


def deliver(engine: Engine, request: Request, reservation: Reservation, upto: int | None = None) -> None:
    """Write the KV that a prefill worker would send, and its first token.

    `upto`: only the KV of this many tokens.
    """
    write(engine, request, reservation, upto)
    if upto is None:
        request.output.append(reference(request.prompt_keys, 1, namespace=request.namespace)[0])
    engine.admit_remote(request, reservation, request.num_tokens - 1 if upto is None else upto)


class KeepPages:
    """What a prefill worker does while its sender still reads a request that has ended."""

    def on_started(self, requests: list[Request]) -> None:
        pass

    def on_computed(self, request: Request, upto: int) -> None:
        pass

    def on_finished(self, request: Request) -> bool:
        return True
