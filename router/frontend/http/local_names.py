"""Defends servers on loopback against DNS rebinding.

A web page of evil.example can have that name resolve to 127.0.0.1. For the browser, a local server is then of
the page's own origin, and CORS does not apply. Only the Host header shows the page's name.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from router.errors import PermissionDenied
from router.frontend.http.refusal import error_response

_LOCALHOST: Final = "localhost"


class RequireLocalName:
    """ASGI middleware. Refuses requests whose Host is a DNS name other than localhost.

    Addresses are accepted: a page at an address is not served by DNS. Clients of HTTP/1.0, which may omit
    Host, are no browsers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_local(host := Headers(scope=scope).get("host", "")):
            error = PermissionDenied(
                f"This server listens on loopback without API keys, and refuses the Host {host[:100]!r} (DNS"
                " rebinding): use localhost or an address.",
                code="unknown_host",
            )
            await error_response(error, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether a server that listens on `host` can be reached from its own machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOCALHOST


def _is_local(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:  # such as an unclosed bracket
        return False
    if name is None or name == _LOCALHOST or name.endswith(f".{_LOCALHOST}"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
