"""Gets an image file over HTTP, from hosts that the operator has named.

A name that is allowed must lead to public addresses, so that its owner cannot point it into the operator's
network; an address that is allowed may be any. The connection goes to the address that was checked.
Redirects are followed to allowed hosts only. Proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Collection
from contextlib import suppress
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

import httptools

from router.api.media.errors import ImageError

TIMEOUT_S: Final = 20.0
"""For all of it, redirects included."""
_MOST_REDIRECTS: Final = 3
_PORTS: Final = {"http": 80, "https": 443}
_MOST_HEADERS: Final = 64 << 10
_READ: Final = 256 << 10


async def fetched(url: str, allowed: Collection[str], limit: int) -> bytes:
    """The file; at most `limit` bytes. Raises ImageError."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await _answer(url, allowed, limit)
                if answer.location is None:
                    return bytes(answer.body)
                url = urljoin(url, answer.location)
    except TimeoutError:
        raise ImageError(f"its host does not send it within {TIMEOUT_S:g} s") from None
    except (OSError, httptools.HttpParserError) as error:
        raise ImageError(f"it cannot be fetched: {type(error).__name__}") from None
    raise ImageError(f"its host redirects more than {_MOST_REDIRECTS} times")


class _Answer:
    """What one GET brings, filled by the parser's callbacks."""

    def __init__(self, limit: int) -> None:
        self._limit: Final = limit
        self._headers = 0
        self._parser: Final = httptools.HttpResponseParser(self)
        self.body: Final = bytearray()
        self.location: str | None = None
        self._is_complete = False
        self._error: ImageError | None = None

    @property
    def has_ended(self) -> bool:
        return self._is_complete

    def feed(self, data: bytes) -> None:
        """Raises ImageError."""
        with suppress(httptools.HttpParserCallbackError):
            self._parser.feed_data(data)
        if self._error is not None:
            raise self._error

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += len(name) + len(value)
        if self._headers > _MOST_HEADERS:
            self._refuse("its host sends too many headers")
        if name.lower() == b"location":
            self.location = value.decode("latin-1")
        if name.lower() == b"content-length" and int(value) > self._limit:
            self._refuse(f"the file has more than {self._limit} bytes")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status not in (301, 302, 303, 307, 308):
            self.location = None
            if status != 200:
                self._refuse(f"its host answers with status {status}")

    def on_body(self, data: bytes) -> None:
        if len(self.body) + len(data) > self._limit:
            self._refuse(f"the file has more than {self._limit} bytes")
        self.body.extend(data)

    def on_message_complete(self) -> None:
        self._is_complete = True

    def _refuse(self, reason: str) -> None:
        self._error = self._error or ImageError(reason)
        raise self._error


async def _answer(url: str, allowed: Collection[str], limit: int) -> _Answer:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ImageError("its URL is not valid") from None
    host, port = _target(parts, allowed)
    address = await _address(host, port)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(
        address, port, ssl=context, server_hostname=host if context else None
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Accept: image/*",
            "User-Agent: baton",
            "Connection: close",
        )
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        answer = _Answer(limit)
        while not answer.has_ended and (data := await reader.read(_READ)):
            answer.feed(data)
        if not answer.has_ended:
            raise ImageError("its host does not send all of it")
        return answer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _target(parts: SplitResult, allowed: Collection[str]) -> tuple[str, int]:
    """Host and port. Raises ImageError."""
    try:
        host, port = (parts.hostname or "").rstrip("."), parts.port
        parts.netloc.encode("ascii"), parts.path.encode("ascii"), parts.query.encode("ascii")
    except ValueError:
        raise ImageError("its URL is not valid") from None
    if parts.scheme not in _PORTS or parts.username or parts.password or not host:
        raise ImageError("its URL is not valid")
    if any(char <= " " or char == "\x7f" for char in f"{parts.netloc}{parts.path}{parts.query}"):
        raise ImageError("its URL is not valid")
    if host not in allowed:
        raise ImageError(
            f"the host {host[:100]!r} is not in --allowed-media-domains; send the image as a data: URL"
        )
    return host, port or _PORTS[parts.scheme]


async def _address(host: str, port: int) -> str:
    """The address to connect to. Raises ImageError."""
    with suppress(ValueError):
        return str(ipaddress.ip_address(host))  # named by the operator
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(entry[4][0]) for entry in found]
    if not addresses or not all(address.is_global and not address.is_multicast for address in addresses):
        raise ImageError(f"the host {host[:100]!r} has no public address")
    return str(addresses[0])
