"""Clients of streams, and the worker that some of the streams come from, in a process of their own.

One process of clients in Python cannot read as much as several routers send. A player measures with the clock
of the machine, so times of one process can be compared with those of another.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks.lib.servers.mock_worker import MockWorker


@dataclass(frozen=True, slots=True)
class Load:
    """Streams that begin at the same time and have the same length."""

    port: int
    streams: Sequence[int]
    """Their numbers, which no other player has."""
    step_s: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Heard:
    began: float
    ended: float
    times: dict[int, list[float]]
    """Times at which the tokens came, by number of the stream."""
    num_events: int


def first_token(stream: int) -> int:
    """First token of the stream's prompt."""
    return 1000 + stream


def play(words: Sequence[int], worker_id: str, core: int, pipe: Connection) -> None:
    """Sends the worker's address through `pipe`, then answers each Load three times: with None when the
    worker is ready for it, after any message with what its clients heard, and after another one with when its
    worker sent each token, by first token of the prompt.
    """
    os.sched_setaffinity(0, [core])
    asyncio.run(_play(words, worker_id, pipe))


async def _play(words: Sequence[int], worker_id: str, pipe: Connection) -> None:
    worker = MockWorker(words, worker_id)
    pipe.send((await worker.start()).address)
    while (load := await asyncio.to_thread(pipe.recv)) is not None:
        worker.step_s = load.step_s
        worker.by_prompt.clear()
        pipe.send(None)
        await asyncio.to_thread(pipe.recv)
        pipe.send(await _listen_to_all(load))
        await asyncio.to_thread(pipe.recv)
        pipe.send({token: request.sent_at for token, request in worker.by_prompt.items()})
    await worker.stop()


async def _listen_to_all(load: Load) -> Heard:
    began = time.monotonic()
    listeners = await asyncio.gather(*(_listen(load.port, k, load.num_tokens) for k in load.streams))
    return Heard(
        began,
        time.monotonic(),
        {k: listener.heard for k, listener in zip(load.streams, listeners, strict=True)},
        sum(listener.num_events for listener in listeners),
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


async def _listen(port: int, stream: int, num_tokens: int) -> _Listener:
    loop = asyncio.get_running_loop()
    listener = _Listener(loop.create_future())
    transport, _ = await loop.create_connection(lambda: listener, "127.0.0.1", port)
    body = {"model": "m", "prompt": [first_token(stream)], "max_tokens": num_tokens, "stream": True}
    content = json.dumps(body | {"ignore_eos": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    transport.write(head.encode() + content)
    try:
        await listener.done
    finally:
        transport.close()
    return listener
