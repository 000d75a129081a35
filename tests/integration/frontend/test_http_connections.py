"""HTTP connections: how long they stay open, how they end, and what a client is told when they do."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.api.http.protocol import BoundedProtocol
from tests.certificates import Authority
from tests.integration.frontends import Frontends, open_frontends

GET = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
ASK = b'{"prompt": "hi"}'
PATIENCE_S = 10.0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Connection:
    """A client that shows what was on the wire."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, request: bytes) -> Answer:
        self.writer.write(request)
        return await self.answer()

    async def answer(self) -> Answer:
        async with asyncio.timeout(PATIENCE_S):
            status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(int(status.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """What comes until the server has closed its side."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()


@asynccontextmanager
async def connection_to(frontends: Frontends, **tls: Any) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", frontends.http.port, **tls)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.pem.decode())


def assert_last(answer: Answer, status: int, code: str) -> None:
    """A JSON error, the last answer of its connection."""
    assert (answer.status, answer.headers["connection"]) == (status, "close")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


class TestKeepAlive:
    async def test_clients_that_honour_the_announced_time_never_lose_a_request(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They come back around that time, a little late too."""
        monkeypatch.setattr(BoundedProtocol, "announced_earlier_s", 2.0)
        async with open_frontends(folder, keep_alive_s=1.0) as frontends:

            async def come_back(pause_s: float) -> None:
                async with connection_to(frontends) as connection:
                    for _ in range(2):
                        answer = await connection.ask(GET)
                        assert answer.headers["keep-alive"] == "timeout=1"
                        await asyncio.sleep(pause_s)

            await asyncio.gather(*(come_back(1.0 + 0.2 * (i / 100 - 0.5)) for i in range(100)))

    async def test_an_idle_connection_is_closed_in_the_end(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BoundedProtocol, "announced_earlier_s", 0.1)
        async with (
            open_frontends(folder, keep_alive_s=0.1) as frontends,
            connection_to(frontends) as unused,
            connection_to(frontends) as used,
        ):
            assert (await used.ask(GET)).status == 200
            used.writer.write(b"\r\n")  # empty lines are no request
            assert [await unused.rest(), await used.rest()] == [b"", b""]

    async def test_the_time_outlasts_the_idle_timeouts_of_proxies(self, frontends: Frontends) -> None:
        async with connection_to(frontends) as connection:
            announced = (await connection.ask(GET)).headers["keep-alive"]
        assert int(announced.removeprefix("timeout=")) > 75, "nginx' idle timeout; AWS ALB has 60 s"

    async def test_connection_close_of_a_client_is_honoured(self, frontends: Frontends) -> None:
        async with connection_to(frontends) as connection:
            answer = await connection.ask(GET.replace(b"host", b"connection: close\r\nhost"))
            assert answer.headers["connection"] == "close"
            assert "keep-alive" not in answer.headers
            assert await connection.rest() == b""

    async def test_before_a_stop_every_answer_is_the_last_of_its_connection(
        self, frontends: Frontends
    ) -> None:
        frontends.dispatcher.hang_after = 0
        async with connection_to(frontends) as idle, connection_to(frontends) as running:
            assert "connection" not in (await idle.ask(GET)).headers
            running.writer.write(POST + b"content-length: %d\r\n\r\n" % len(ASK) + ASK)
            while not frontends.dispatcher.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            frontends.http.wind_down()
            frontends.generation.fail_all()
            for answer in (await idle.ask(GET), await running.answer()):
                assert answer.headers["connection"] == "close"
            assert [await idle.rest(), await running.rest()] == [b"", b""]
        async with connection_to(frontends) as late:
            assert (await late.ask(GET)).headers["connection"] == "close"


SLOW = {
    "a request line": b"GET /li",
    "headers": POST + b"content-len",
    "a body": POST + b"content-length: 99\r\n\r\n{",
    "a chunked body": POST + b"transfer-encoding: chunked\r\n\r\n5\r\n{",
}


class TestSlowRequests:
    @pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
    @pytest.mark.parametrize("before", [False, True], ids=["first", "second"])
    async def test_a_request_that_does_not_arrive_is_answered_with_408(
        self, frontends: Frontends, monkeypatch: pytest.MonkeyPatch, sent: bytes, before: bool
    ) -> None:
        monkeypatch.setattr(BoundedProtocol, "arrival_s", 0.2)
        async with connection_to(frontends) as connection:
            if before:
                assert (await connection.ask(GET)).status == 200
            assert_last(await connection.ask(sent), 408, "request_timeout")
            assert await connection.rest() == b""
        assert not frontends.dispatcher.calls

    async def test_over_tls_too(self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(BoundedProtocol, "arrival_s", 0.2)
        authority = Authority.make("ours")
        async with (
            open_frontends(folder, tls=authority.issue(tmp_path)) as frontends,
            connection_to(frontends, ssl=trusting(authority)) as connection,
        ):
            assert_last(await connection.ask(SLOW["headers"]), 408, "request_timeout")

    async def test_a_body_that_continues_after_its_refusal_is_not_answered_twice(
        self, frontends: Frontends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BoundedProtocol, "arrival_s", 0.2)
        async with connection_to(frontends) as connection:
            answer = await connection.ask(POST + b"content-length: 999999999\r\n\r\n{")
            assert answer.status == 413
            assert await connection.rest() == b""

    async def test_a_slow_second_request_does_not_spoil_the_answer_to_the_first(
        self, frontends: Frontends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BoundedProtocol, "arrival_s", 0.2)
        monkeypatch.setattr(frontends.dispatcher, "pause_s", 0.05)
        async with connection_to(frontends) as connection:
            ask = POST + b"content-length: %d\r\n\r\n" % len(ASK) + ASK
            answer = await connection.ask(ask + b"GET /li")
            assert answer.status == 200
            assert len(json.loads(answer.body)["choices"]) == 1
            assert await connection.rest() == b""


class TestLargeHeaders:
    @pytest.mark.parametrize(
        "head",
        [
            b"GET /live HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
            b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\n\r\n",
            b"GET /live HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
            b"GET /live HTTP/1.1\r\nx: " + b"y" * 400_000,
        ],
        ids=["header", "path", "many", "without end"],
    )
    @pytest.mark.parametrize("before", [False, True], ids=["first", "second"])
    async def test_headers_beyond_the_bound_are_answered_with_431(
        self, frontends: Frontends, head: bytes, before: bool
    ) -> None:
        async with connection_to(frontends) as connection:
            if before:
                assert (await connection.ask(GET)).status == 200
            assert_last(await connection.ask(head), 431, "headers_too_large")
            assert await connection.rest() == b""

    async def test_headers_within_the_bound_are_read(self, frontends: Frontends) -> None:
        async with httpx.AsyncClient(base_url=frontends.url) as http:
            assert (await http.get("/live", headers={"x": "y" * 60_000})).status_code == 200

    async def test_bytes_that_are_not_http_are_an_error_in_json_too(self, frontends: Frontends) -> None:
        async with connection_to(frontends) as connection:
            assert_last(await connection.ask(b"\x00\r\n\r\n"), 400, "invalid_value")
