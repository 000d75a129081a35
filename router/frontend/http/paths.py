"""Paths of requests, before they are authenticated and routed."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class IgnoreTrailingSlash:
    """ASGI middleware. Serves /health/ as /health.

    A redirect would need the scheme and the name that the client used, which proxies change.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"
        await self._app(scope, receive, send)
