"""Throughput and latency of the router: HTTP streams, with workers that compute nothing.

    python -m benchmarks.router_throughput
    python -m benchmarks.router_throughput --frontends 2       # needs 4 cores

Each of the routers, which share a port, has a core of its own; a worker and its part of the clients share
another. Streams are given for each router. Each stream gets one token per step of a given time. The latency
of a token is measured from when the worker passes its step's tokens to gRPC until the client has read it,
which includes both ends of two sockets. If the router cannot keep up, it sends several tokens per event,
which is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles, figures_table
from benchmarks.lib.servers.rayless_router import run_router
from benchmarks.lib.stream_clients import Heard, Load, first_token, play
from engine.modeling.loader.checkpoint import Checkpoint, resolve
from router.api.generation.text.tokenizer import Tokenizer
from router.api.http.server import listen

_RESULTS: Final = Path(__file__).parent / "results"
_LOADS: Final = ((1, 10.0), (32, 12.5), (128, 12.5), (256, 12.5), (512, 12.5))
"""Streams at a time, and milliseconds a step."""


@dataclass(frozen=True, slots=True)
class Outcome:
    frontends: int
    streams: int
    step_ms: float
    offered: float
    """Tokens a second that the worker would give."""
    streamed: float
    """Tokens a second that the clients got."""
    tokens_an_event: float
    router_cores: float
    latency_ms: Percentiles


def main() -> None:
    options = make_parser().parse_args()
    console = Console()
    count = options.frontends
    routers = "The router on one" if count == 1 else f"{count} front ends, each on one"
    title = f"{routers} of {describe_machine()}"
    outcomes = asyncio.run(_measure_all(options.model, options.seconds, count, console))
    console.print(_table(outcomes, title))
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"router-throughput{f'-{count}' if count > 1 else ''}.json"
    results = {"title": title, "outcomes": [asdict(outcome) for outcome in outcomes]}
    save_json(path, results)
    console.print(f"Written to {path}")


async def _measure_all(model: str, seconds: float, frontends: int, console: Console) -> list[Outcome]:
    checkpoint = await asyncio.to_thread(resolve, model)
    async with stage(checkpoint, frontends) as setting:
        await measure(setting, streams=8, step_ms=5.0, seconds=1.0)  # warm
        outcomes = []
        for streams, step_ms in _LOADS:
            with console.status(f"{streams * frontends} streams …"):
                outcomes.append(
                    await measure(setting, streams=streams * frontends, step_ms=step_ms, seconds=seconds)
                )
        return outcomes


@dataclass(frozen=True, slots=True)
class Setting:
    players: Sequence[Connection]
    routers: Sequence[psutil.Process]
    port: int
    """The routers', for HTTP."""


@asynccontextmanager
async def stage(checkpoint: Checkpoint, frontends: int = 1) -> AsyncIterator[Setting]:
    """Routers on one port, and as many players, each of all on a core of its own while there are cores.

    Every router is connected to the workers of all players.
    """
    folder, vocab_size = checkpoint.path, checkpoint.spec().vocab_size
    words = _words(Tokenizer.load(folder, vocab_size=vocab_size))
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    router_cores = [next(cores) for _ in range(frontends)]
    with ExitStack() as stack:
        players = [
            _start(stack, play, words, f"decode-{index}", next(cores))[0] for index in range(frontends)
        ]
        workers = [await asyncio.to_thread(player.recv) for player in players]
        port = stack.enter_context(listen("127.0.0.1", 0, shared=True)).getsockname()[1]
        settings = folder, vocab_size, workers, port
        started = [_start(stack, run_router, *settings, core) for core in router_cores]
        for pipe, _ in started:
            await asyncio.to_thread(pipe.recv)
        yield Setting(players, [psutil.Process(process.pid) for _, process in started], port)


def _start(
    stack: ExitStack, target: Callable[..., None], *arguments: object
) -> tuple[Connection, BaseProcess]:
    """A process that ends with `stack`, and a pipe to it."""
    pipe, far_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=target, args=(*arguments, far_end), daemon=True
    )
    process.start()
    stack.callback(process.join)
    stack.callback(process.terminate)
    return pipe, process


async def measure(setting: Setting, *, streams: int, step_ms: float, seconds: float) -> Outcome:
    """Run `streams` streams for about `seconds`; they begin at the same time and have the same length."""
    num_tokens = max(2, round(seconds * 1e3 / step_ms))
    players = setting.players
    for index, player in enumerate(players):
        own = range(index, streams, len(players))
        player.send(Load(setting.port, own, step_ms / 1e3, num_tokens))
    await _answers(players)
    cpu = sum(map(_cpu_seconds, setting.routers))
    heard: list[Heard] = await _ask(players)
    cpu = sum(map(_cpu_seconds, setting.routers)) - cpu
    sent = {token: times for part in await _ask(players) for token, times in part.items()}
    took = max(part.ended for part in heard) - min(part.began for part in heard)
    latencies: list[float] = []
    for stream, times in (pair for part in heard for pair in part.times.items()):
        sent_at = sent[first_token(stream)]
        if len(times) != len(sent_at):
            raise SystemExit(f"Stream {stream} had {len(times)} of {len(sent_at)} tokens.")
        latencies += [1e3 * (came - at) for came, at in zip(times, sent_at, strict=True)]
    return Outcome(
        frontends=len(setting.routers),
        streams=streams,
        step_ms=step_ms,
        offered=streams * 1e3 / step_ms,
        streamed=streams * num_tokens / took,
        tokens_an_event=len(latencies) / sum(part.num_events for part in heard),
        router_cores=cpu / took,
        latency_ms=Percentiles.of(latencies),
    )


async def _ask(players: Sequence[Connection]) -> list[Any]:
    for player in players:
        player.send(None)
    return await _answers(players)


async def _answers(players: Sequence[Connection]) -> list[Any]:
    return list(await asyncio.gather(*(asyncio.to_thread(player.recv) for player in players)))


def _words(tokenizer: Tokenizer) -> list[int]:
    """Tokens that are a space and letters: so that a client can count them."""
    words = []
    for token in range(1000, 6000):
        text = tokenizer.detokenizer([1000]).feed([token])
        if text.startswith(" ") and text[1:].isascii() and text[1:].isalpha():
            words.append(token)
    return words


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _table(outcomes: Sequence[Outcome], title: str) -> Table:
    table = figures_table(
        title, "streams", "step", "offered", "streamed", "tokens", "router", "latency", "latency"
    )
    table.add_row("", "ms", "tokens/s", "tokens/s", "an event", "cores", "p50, ms", "p99, ms")
    for o in outcomes:
        table.add_row(
            str(o.streams),
            f"{o.step_ms:g}",
            f"{o.offered:,.0f}",
            f"{o.streamed:,.0f}",
            f"{o.tokens_an_event:.2f}",
            f"{o.router_cores:.2f}",
            f"{o.latency_ms.p50:.2f}",
            f"{o.latency_ms.p99:.2f}",
        )
    return table


def make_parser() -> argparse.ArgumentParser:
    parser = command("router_throughput", __doc__)
    parser.add_argument("--model", default="smollm2", help="whose tokenizer is used")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each load")
    parser.add_argument("--frontends", type=int, default=1, metavar="N", help="routers on one port")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    return parser


if __name__ == "__main__":
    main()
