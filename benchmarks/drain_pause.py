"""Pause of streams when their worker drains: answers that move with their KV, or are recomputed.

Two workers in this process, over the loopback transport, answer long prompts. Answers of one worker move to
the other, alternating between the two methods. One run, one machine, one prompt length: only the ratio is
meaningful. "lost decode-0" is the worker that the benchmark takes out of rotation, so that its answers are
recomputed.

    python -m benchmarks.drain_pause --model FOLDER --output FILE.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from benchmarks.lib.command import command, save_json
from benchmarks.lib.provenance import provenance
from engine.config import EngineConfig, SchedulerConfig
from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.token_stream import Delta, TokenStream
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from rpc.channel import Endpoint
from worker.config import WorkerConfig, WorkerRole
from worker.process.host import WorkerHost

_ROLES: Final = {WorkerRole.PREFILL: ROLE_PREFILL, WorkerRole.DECODE: ROLE_DECODE}
_SETTLED_TOKENS: Final = 8
"""Of every answer, before the worker leaves."""
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class _Handle:
    worker_id: str
    role: worker_pb2.Role
    host: WorkerHost

    async def endpoint(self) -> Endpoint:
        return Endpoint(self.host.address)

    async def stop(self) -> None:
        raise AssertionError("workers of the benchmark are not stopped")

    async def drain(self, seconds: float) -> None:
        raise AssertionError("workers of the benchmark are not drained through Ray")

    async def revive(self) -> None:
        raise AssertionError("workers of the benchmark are not stopped")


@dataclass(slots=True)
class _Stream:
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    def pause_after(self, moment: float) -> float:
        """The longest time between two tokens of which the second came after `moment`."""
        return max((after - before for before, after in pairwise(self.times) if after > moment), default=0.0)


def main() -> None:
    options = _parser().parse_args()
    pauses = asyncio.run(_measure(options))
    print("| answers | pause, median | longest | of recomputation |\n| --- | --- | --- | --- |")
    reference = statistics.median(pauses["computed again"])
    for way, seconds in pauses.items():
        median = statistics.median(seconds)
        print(f"| {way} | {1e3 * median:.0f} ms | {1e3 * max(seconds):.0f} ms | {median / reference:.3f} |")
    if options.output:
        asked = {name: getattr(options, name) for name in ("length", "streams", "rounds")}
        content = {"model": options.model.name, "made_with": provenance(), **asked, "pauses_s": pauses}
        save_json(options.output, content, indent=1)


async def _measure(options: argparse.Namespace) -> dict[str, list[float]]:
    pauses: dict[str, list[float]] = {"moved": [], "computed again": []}
    async with AsyncExitStack() as stack:
        handles = []
        for number in range(2):
            config = WorkerConfig(
                worker_id=f"decode-{number}",
                role=WorkerRole.DECODE,
                model="m",
                engine=_engine(options),
                transport="loopback",
            )
            host = WorkerHost(config, on_death=_fail)
            await host.start()
            stack.push_async_callback(host.stop)
            handles.append(_Handle(config.worker_id, _ROLES[config.role], host))
        registry = await stack.enter_async_context(Registry(handles, silence_s=10.0))
        await registry.wait_for_all(_PATIENCE_S)
        settings = RouterConfig(model="m", mode=Mode.ADAPTIVE)
        dispatcher = ClusterDispatcher(settings, registry, RouterMetrics())
        for round_ in range(options.rounds):
            for way, seconds in pauses.items():
                seconds += await _round(options, registry, dispatcher, round_, move=way == "moved")
    return pauses


async def _round(
    options: argparse.Namespace,
    registry: Registry,
    dispatcher: ClusterDispatcher,
    round_: int,
    *,
    move: bool,
) -> list[float]:
    """Pauses of the streams whose worker was left."""
    streams = [_Stream() for _ in range(options.streams)]
    tasks = [
        asyncio.create_task(_follow(dispatcher, stream, _prompt(options, 2 * (100 * round_ + i) + move)))
        for i, stream in enumerate(streams)
    ]
    while any(len(stream.tokens) < _SETTLED_TOKENS for stream in streams):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    left = max(registry.sessions(), key=lambda session: session.load.requests)
    began = time.monotonic()
    if move:
        await dispatcher.migrate_from(left.worker_id, _PATIENCE_S)
    else:
        left.dismiss("the benchmark has it leave")
    await asyncio.gather(*tasks)
    await registry.wait_for_all(_PATIENCE_S)
    return [stream.pause_after(began) for stream in streams]


async def _follow(dispatcher: ClusterDispatcher, stream: _Stream, prompt: list[int]) -> None:
    sampling = sampling_pb2.SamplingParams(max_tokens=96, temperature=0.0, ignore_eos=True, seed=1)

    def deliver(delta: Delta) -> bool:
        stream.tokens += delta.token_ids
        stream.times.append(time.monotonic())
        return False

    await dispatcher.generate(worker_pb2.Work(prompt=prompt, sampling=sampling), TokenStream(deliver))


def _prompt(options: argparse.Namespace, seed: int) -> list[int]:
    """No two rounds share a prefix, so that nothing of the context is cached on the target."""
    rng = random.Random(seed)
    return [rng.randrange(16, 90) for _ in range(options.length)]


def _engine(options: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model_path=options.model,
        load_format=options.load_format,
        num_pages=4 * options.streams * (options.length + 512) // 16,
        max_model_len=options.length + 256,
        scheduler=SchedulerConfig(chunk_budget=256),
    )


def _fail(death: BaseException) -> None:
    raise SystemExit(str(death))


def _parser() -> argparse.ArgumentParser:
    parser = command("drain_pause", __doc__)
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--load-format", default="auto", choices=["auto", "dummy"])
    parser.add_argument("--length", type=int, default=1024, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="moves of each kind (default: %(default)s)")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    return parser


if __name__ == "__main__":
    main()
