"""HTTP clients that read slowly or not at all: what they cost the router, and other clients."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

import httpx
import pytest
from prometheus_client import CollectorRegistry

from engine.modeling.loader.checkpoint import resolve
from router.api.generation.generation import Generation
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.http.server import HttpConfig, HttpServer
from tests.integration.fake_cluster import PROMPT, Service, pair, service
from tests.integration.fake_worker import decode_worker
from tests.integration.frontends import load_tokenizer

TOKENS = 5_000
SOCKET_BYTES = 4096
"""Size of the kernel's buffers on both sides, so that they hold a small part of the answer."""
WRITE_BUFFER_BYTES = 128 << 10
"""Buffer of asyncio for each connection, before it asks for a pause; and what else a connection costs."""


@dataclass
class Served:
    service: Service
    generation: Generation
    http: HttpServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.port}/v1/completions"

    @property
    def connections(self) -> int:
        return len(self.http._server.server_state.connections)

    @property
    def running(self) -> int:
        return len(self.generation._running)

    async def computed(self) -> None:
        """Wait until the workers have finished, whether clients read or not."""
        for session in self.service.registry.sessions():
            assert await session.idle(60.0)

    async def until_nothing_runs(self) -> None:
        async with asyncio.timeout(10.0):
            while self.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await self.service.settled()


@asynccontextmanager
async def served(mode: str = "mixed", token_s: float = 0.0, **settings: float) -> AsyncIterator[Served]:
    folder = resolve("smollm2").path
    workers = pair() if mode == "disagg" else [decode_worker("decode-0", token_s=token_s)]
    async with service(*workers) as running:
        model = ServedModel(
            name="small",
            path=folder,
            mode=mode,
            max_model_len=2 * TOKENS,
            vocab_size=49152,
            eos_token_ids=(2,),
        )
        generation = Generation(model, load_tokenizer(folder), running.dispatcher)
        http = HttpServer(
            ServedModels([generation]), HttpConfig(port=0, **settings), metrics=CollectorRegistry()
        )
        await http.start()
        for server in http._server.servers:
            for listener in server.sockets:  # connections inherit it
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        try:
            yield Served(running, generation, http)
        finally:
            await http.stop(grace_s=1)


@contextmanager
def asking(port: int, **more: object) -> Iterator[socket.socket]:
    """A connection whose client has sent its request, and has read nothing yet."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": TOKENS, "stream": True, **more}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        connection.connect(("127.0.0.1", port))
        connection.sendall(head + body)
        connection.setblocking(False)
        yield connection


async def rest_of(connection: socket.socket, pause_s: float = 0.0, at_once: int = 1 << 16) -> list[dict]:
    """All events of the answer; `pause_s` before every read of at most `at_once` bytes."""
    loop, received = asyncio.get_running_loop(), b""
    while part := await loop.sock_recv(connection, at_once):
        received += part
        await asyncio.sleep(pause_s)
    return [json.loads(line[6:]) for line in unchunked(received).splitlines() if line.startswith(b"data: {")]


def unchunked(response: bytes) -> bytes:
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


def text_of(events: list[dict]) -> str:
    return "".join(event["choices"][0]["text"] for event in events)


async def ask(url: str, max_tokens: int) -> str:
    async with httpx.AsyncClient(timeout=60.0) as client:
        answer = await client.post(url, json={"prompt": PROMPT, "max_tokens": max_tokens})
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.parametrize("mode", ["mixed", "disagg"])
async def test_a_slow_reader_gets_the_whole_answer_after_the_workers_have_finished_it(mode: str) -> None:
    async with served(mode) as router:
        expected = await ask(router.url, TOKENS)
        with asking(router.http.port) as connection:
            await asyncio.sleep(0.2)
            await router.computed()
            assert router.running == 1
            events = await rest_of(connection, pause_s=0.002, at_once=2048)
        assert text_of(events) == expected
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        await router.until_nothing_runs()


async def test_clients_that_never_read_cost_a_few_bytes_a_token_and_no_other_client_time() -> None:
    clients, tokens = 6, 2_000
    async with served() as router, AsyncExitStack() as stack:
        began = time.monotonic()
        expected = await ask(router.url, 500)
        alone = time.monotonic() - began
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(clients):
                stack.enter_context(asking(router.http.port, max_tokens=tokens))
            async with asyncio.timeout(30.0):
                while router.running < clients:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await router.computed()
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert router.running == clients
        assert grown < clients * (100 * tokens + WRITE_BUFFER_BYTES)
        began = time.monotonic()
        assert await ask(router.url, 500) == expected
        assert time.monotonic() - began < 5 * alone + 5.0
        await stack.aclose()
        await router.until_nothing_runs()


async def test_the_deadline_of_a_request_ends_it_although_its_client_does_not_read() -> None:
    """It is still computed then, and what is computed fits in the buffers of the connection."""
    async with served(token_s=0.005) as router:
        with asking(router.http.port, timeout=1.0) as connection:
            await router.until_nothing_runs()
            events = await rest_of(connection)
        assert "error" in events[-1], events[-1]


@pytest.mark.parametrize("token_s", [0.0, 0.002], ids=["computed", "being computed"])
async def test_the_deadline_ends_a_paused_stream(token_s: float) -> None:
    """Log-probabilities make what is computed larger than all buffers, however its tokens share events."""
    tokens = 2_500
    async with served(token_s=token_s) as router:
        with asking(router.http.port, timeout=3.0, max_tokens=tokens, logprobs=20) as connection:
            await asyncio.sleep(0.2)
            if not token_s:
                await router.computed()
            assert router.running == 1
            await router.until_nothing_runs()
            events = await rest_of(connection)
        *answered, last = events
        assert last["error"]["code"] == "deadline_exceeded"
        received = sum(len(event["choices"][0]["logprobs"]["tokens"]) for event in answered)
        assert 0 < received < tokens
        assert len(json.dumps(events)) * tokens / received > 4 * WRITE_BUFFER_BYTES


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_takes_no_byte_for_too_long_is_disconnected(stream: bool) -> None:
    async with served(write_timeout_s=1.0) as router:
        with asking(router.http.port, stream=stream) as connection:
            async with asyncio.timeout(30.0):
                while not router.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while router.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            with pytest.raises(ConnectionError):
                await rest_of(connection)
        await router.until_nothing_runs()


async def test_a_client_that_reads_a_little_is_not_disconnected() -> None:
    async with served(write_timeout_s=1.0) as router:
        with asking(router.http.port) as connection:
            events = await rest_of(connection, pause_s=0.1, at_once=16 << 10)
        assert events[-1]["choices"][0]["finish_reason"] == "length"
