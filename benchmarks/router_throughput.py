"""Throughput and latency of the router: HTTP streams, with a worker that computes nothing.

    python -m benchmarks.router_throughput

The router has a core of its own; the worker and all clients share another. Each stream gets one token per
step of a given time. The latency of a token is measured from when the worker passes its step's tokens to gRPC
until the client has read it, which includes both ends of two sockets. If the router cannot keep up, it sends
several tokens per event, which is reported.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Percentiles
from benchmarks.lib.servers.mock_worker import MockWorker
from benchmarks.lib.servers.rayless_router import run_router
from engine.loader.checkpoint import Checkpoint, resolve
from router.processing.text.tokenizer import Tokenizer

__all__ = ["Outcome", "Setting", "measure", "stage"]

_RESULTS: Final = Path(__file__).parent / "results"
_LOADS: Final = ((1, 10.0), (32, 12.5), (128, 12.5), (256, 12.5), (512, 12.5))
"""Streams at a time, and milliseconds a step."""


@dataclass(frozen=True, slots=True)
class Outcome:
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
    options = _parser().parse_args()
    console = Console()
    title = f"The router on one of {describe_machine()}"
    outcomes = asyncio.run(_measure_all(options.model, options.seconds, console))
    console.print(_table(outcomes, title))
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "router-throughput.json"
    results = {"title": title, "outcomes": [asdict(outcome) for outcome in outcomes]}
    path.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"Written to {path}")


async def _measure_all(model: str, seconds: float, console: Console) -> list[Outcome]:
    checkpoint = await asyncio.to_thread(resolve, model)
    cores = sorted(os.sched_getaffinity(0))
    async with stage(checkpoint, router_core=cores[0]) as setting:
        os.sched_setaffinity(0, cores[1:2] or cores)
        await measure(setting, streams=8, step_ms=5.0, seconds=1.0)  # warm
        outcomes = []
        for streams, step_ms in _LOADS:
            with console.status(f"{streams} streams …"):
                outcomes.append(await measure(setting, streams=streams, step_ms=step_ms, seconds=seconds))
        return outcomes


@dataclass(frozen=True, slots=True)
class Setting:
    mock_worker: MockWorker
    router: psutil.Process
    port: int
    """The router's, for HTTP."""


@asynccontextmanager
async def stage(checkpoint: Checkpoint, *, router_core: int) -> AsyncIterator[Setting]:
    """A worker here and a router in a process of its own, with the tokenizer of the checkpoint."""
    folder, vocab_size = checkpoint.path, checkpoint.spec().vocab_size
    mock_worker = MockWorker(_words(Tokenizer.load(folder, vocab_size=vocab_size)))
    endpoint = await mock_worker.start()
    pipe, far_end = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=run_router, args=(folder, vocab_size, endpoint.address, router_core, far_end), daemon=True
    )
    process.start()
    try:
        port = await asyncio.to_thread(pipe.recv)
        yield Setting(mock_worker, psutil.Process(process.pid), port)
    finally:
        process.terminate()
        await asyncio.to_thread(process.join)
        await mock_worker.stop()


async def measure(setting: Setting, *, streams: int, step_ms: float, seconds: float) -> Outcome:
    """Run `streams` streams for about `seconds`; they begin at the same time and have the same length."""
    mock_worker = setting.mock_worker
    mock_worker.step_s = step_ms / 1e3
    mock_worker.by_prompt.clear()
    num_tokens = max(2, round(seconds * 1e3 / step_ms))
    cpu = _cpu_seconds(setting.router)
    began = time.monotonic()
    listeners = await asyncio.gather(*(_listen(setting.port, k, num_tokens) for k in range(streams)))
    took = time.monotonic() - began
    cpu = _cpu_seconds(setting.router) - cpu
    latencies: list[float] = []
    for k, listener in enumerate(listeners):
        sent_at = mock_worker.by_prompt[_first_token(k)].sent_at
        if len(listener.heard) != len(sent_at):
            raise SystemExit(f"Stream {k} had {len(listener.heard)} of {len(sent_at)} tokens.")
        latencies += [1e3 * (heard - at) for heard, at in zip(listener.heard, sent_at, strict=True)]
    return Outcome(
        streams=streams,
        step_ms=step_ms,
        offered=streams * 1e3 / step_ms,
        streamed=streams * num_tokens / took,
        tokens_an_event=len(latencies) / sum(listener.num_events for listener in listeners),
        router_cores=cpu / took,
        latency_ms=Percentiles.of(latencies),
    )


@dataclass(slots=True, eq=False)
class _Listener(asyncio.Protocol):
    """Reads one answer; as little as possible a token, for it shares its core with hundreds of others."""

    done: asyncio.Future[None]
    heard: list[float] = field(default_factory=list)
    """When each token came."""
    num_events: int = 0
    _rest: bytes = b""

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not (self.heard or self._rest or data.startswith(b"HTTP/1.1 200 ")):
            self.done.set_exception(ConnectionError(data.decode(errors="replace")))
            return
        whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        for event in whole.split(b"\n\n"):
            text = event.partition(b'"text":"')[2].partition(b'"')[0]
            self.num_events += bool(text)
            self.heard += [now] * text.count(b" ")  # every word begins with one
        if whole.endswith(b"data: [DONE]") and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the router hung up"))


async def _listen(port: int, k: int, num_tokens: int) -> _Listener:
    loop = asyncio.get_running_loop()
    listener = _Listener(loop.create_future())
    transport, _ = await loop.create_connection(lambda: listener, "127.0.0.1", port)
    body = {"model": "m", "prompt": [_first_token(k)], "max_tokens": num_tokens, "stream": True}
    content = json.dumps(body | {"ignore_eos": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    transport.write(head.encode() + content)
    try:
        await listener.done
    finally:
        transport.close()
    return listener


def _first_token(k: int) -> int:
    return 1000 + k


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
    table = Table(title=title, title_justify="left", show_edge=False)
    for name in ("streams", "step", "offered", "streamed", "tokens", "router", "latency", "latency"):
        table.add_column(name, justify="right")
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.router_throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2", help="whose tokenizer is used")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each load")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    return parser


if __name__ == "__main__":
    main()
