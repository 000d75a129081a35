"""No request makes the streams of others pause. Prints how long each does, as a table (`-s`)."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest

from tests.integration.hostile.corpus import TEXT, Hostile, corpus

LONGEST_PAUSE_S = 0.1
PATIENCE_S = 60.0
_ATTEMPTS = 6
"""A request that occupies the event loop does so each time; a machine that runs something else does not."""
_NO_ANSWER = "no answer"
NOTHING = Hostile("nothing", TEXT, lambda: b'{"prompt":"a","max_tokens":5}')


@dataclass
class Router:
    """A router process, and one stream that it serves."""

    url: str
    target: str
    process: asyncio.subprocess.Process
    arrivals: list[float] = field(default_factory=list)

    async def follow(self) -> None:
        body = {"prompt": "a", "max_tokens": 90_000, "stream": True}
        async with httpx.AsyncClient(timeout=None) as client:
            while True:  # an answer ends after a few minutes
                async with client.stream("POST", self.url + TEXT, json=body) as response:
                    async for _ in response.aiter_raw():
                        self.arrivals.append(asyncio.get_running_loop().time())

    def longest_pause(self, since: float) -> float:
        times = [since, *(time for time in self.arrivals if time > since), asyncio.get_running_loop().time()]
        return max(after - before for before, after in itertools.pairwise(times))


@asynccontextmanager
async def running_router() -> AsyncIterator[Router]:
    command = (sys.executable, "-m", "tests.integration.hostile.scripted_router")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None
    http, rpc = (await process.stdout.readline()).split()
    router = Router(f"http://127.0.0.1:{int(http)}", f"127.0.0.1:{int(rpc)}", process)
    stream = asyncio.create_task(router.follow())
    try:
        while len(router.arrivals) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        yield router
    finally:
        stream.cancel()
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def send(router: Router, surface: str, body: bytes) -> str:
    """The status, as text."""
    if surface.startswith("/"):
        return await post(router, surface, body)
    async with grpc.aio.insecure_channel(router.target) as channel:
        kind = channel.unary_stream if surface == "Generate" else channel.unary_unary
        call: Any = kind(f"/baton.v1.Router/{surface}")(body)
        try:
            if surface == "Generate":
                await call.read()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


async def post(router: Router, path: str, body: bytes) -> str:
    """Plainly: this process measures, so it must not be late itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", router.url.rpartition(":")[2])
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    try:
        status = (await reader.readline()).split()[1].decode()
        while await reader.read(1 << 20):
            pass
    finally:
        writer.close()
    return status


async def pause_of(router: Router, hostile: Hostile, body: bytes) -> tuple[str, float]:
    """How the request ended, and the longest pause of the stream meanwhile."""
    began = asyncio.get_running_loop().time()
    sent = [asyncio.create_task(send(router, hostile.surface, body)) for _ in range(hostile.at_once)]
    done, _ = await asyncio.wait(sent, timeout=PATIENCE_S)
    await asyncio.sleep(0.1)
    pause = router.longest_pause(began)
    for task in sent:
        task.cancel()
    return (sent[0].result() if len(done) == len(sent) else _NO_ANSWER), pause


async def shortest_pause_of(router: Router, hostile: Hostile) -> tuple[str, float]:
    """How the request ended, and the pause of the stream that it cannot do without: the shortest of some
    attempts, beyond what a request for five tokens causes on this machine just then."""
    body, shortest = hostile.content(), math.inf
    for _ in range(_ATTEMPTS):
        status, pause = await pause_of(router, hostile, body)
        if status == _NO_ANSWER:
            return status, pause
        if pause > LONGEST_PAUSE_S:
            pause -= max([(await pause_of(router, NOTHING, NOTHING.content()))[1] for _ in range(5)])
        shortest = min(shortest, pause)
        if shortest <= LONGEST_PAUSE_S:
            break
    return status, shortest


@pytest.mark.alone
@pytest.mark.timeout(600)
async def test_no_request_makes_another_stream_pause() -> None:
    left, slow, unanswered = corpus(), list[str](), list[str]()
    while left:
        async with running_router() as router:
            while left:
                hostile = left.pop(0)
                status, pause = await shortest_pause_of(router, hostile)
                print(f"| {hostile.name} | {hostile.surface} | {status} | {pause * 1e3:.0f} |", flush=True)
                if status == _NO_ANSWER:
                    unanswered.append(hostile.name)
                    break
                if pause > LONGEST_PAUSE_S:
                    slow.append(f"{hostile.name} ({hostile.surface}): {pause:.3f} s")
    assert not slow
    assert not unanswered
