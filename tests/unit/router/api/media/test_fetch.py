"""Images over HTTP: from named hosts alone, whatever redirects, names and addresses try."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.api.media import fetch
from router.api.media.errors import ImageError
from router.api.media.fetch import fetched

LIMIT = 1000


class Host:
    """Answers every request with `answer`, and counts them."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(self.answer)
        writer.close()

    def url(self, name: str = "127.0.0.1", path: str = "/a.png?x=1") -> str:
        return f"http://{name}:{self.port}{path}"


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    host = Host()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0)
    host.port = server.sockets[0].getsockname()[1]
    yield host
    server.close()
    await server.wait_closed()


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", "")
    return "\r\n".join(lines).encode() + body


async def refused(url: str, allowed: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        await fetched(url, allowed, LIMIT)


async def test_a_file_of_an_allowed_host_is_fetched(host: Host) -> None:
    host.answer = answer(b"pixels")
    assert await fetched(host.url(), ("127.0.0.1",), LIMIT) == b"pixels"
    assert host.asked[0].startswith(b"GET /a.png?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    host.answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\npix\r\n3\r\nels\r\n0\r\n\r\n"
    assert await fetched(host.url(), ("127.0.0.1",), LIMIT) == b"pixels"


async def test_a_host_that_is_not_allowed_is_not_asked(host: Host) -> None:
    host.answer = answer(b"pixels")
    for name in ("127.0.0.1", "localhost", "127.1", "2130706433", "a.example@127.0.0.1", "A.EXAMPLE.evil"):
        await refused(host.url(name), ("a.example",), "not in --allowed|not valid")
    await refused("http:///a.png", ("",), "not valid")
    await refused("http://127.0.0.1:99999/", ("127.0.0.1",), "not valid")
    await refused("http://127.0.0.1/a\r\nX: y", ("127.0.0.1",), "not valid")
    await refused("http://127.0.0.1/a b", ("127.0.0.1",), "not valid")
    assert not host.asked


PRIVATE = "127.0.0.1 10.1.2.3 192.168.0.1 169.254.169.254 ::1 fd00::1 0.0.0.0 224.0.0.1 ::ffff:10.0.0.1"


async def test_a_redirect_to_another_host_is_not_followed(host: Host) -> None:
    host.answer = answer(b"", "302 Found", f"Location: http://localhost:{host.port}/secret")
    await refused(host.url(), ("127.0.0.1",), "'localhost' is not in --allowed-media-domains")
    assert len(host.asked) == 1
    host.answer = answer(b"", "302 Found", "Location: file:///etc/passwd")
    await refused(host.url(), ("127.0.0.1",), "not valid|not in")
    host.answer = answer(b"", "302 Found", "Location: /again")
    await refused(host.url(), ("127.0.0.1",), "redirects more than 3 times")


@pytest.mark.parametrize("address", PRIVATE.split())
async def test_an_allowed_name_with_a_private_address_is_not_asked(
    host: Host, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    async def look_up(*_: Any, **__: Any) -> list[Any]:
        public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", host.port))
        return [public, (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, host.port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up, raising=False)
    await refused(host.url("a.example"), ("a.example",), "no public address")
    assert not host.asked


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (answer(b"x" * (LIMIT + 1)), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (LIMIT + 1), "more than 1000 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "does not send all"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (200 << 10), "headers|cannot be fetched|all of it"),
        (answer(b"", "404 Not Found"), "status 404"),
        (b"hello\r\n\r\n", "cannot be fetched"),
        (b"", "does not send all"),
    ],
)
async def test_an_answer_that_is_too_large_or_wrong_is_refused(host: Host, sent: bytes, reason: str) -> None:
    host.answer = sent
    await refused(host.url(), ("127.0.0.1",), reason)


async def test_a_host_that_sends_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(fetch, "TIMEOUT_S", 0.1)
    with silent:
        await refused(f"http://127.0.0.1:{silent.getsockname()[1]}/", ("127.0.0.1",), "within 0.1 s")
