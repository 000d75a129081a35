"""Lets HTTP requests in that bring an API key."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router.api_keys import ApiKeys
from router.clients import CURRENT_CLIENT
from router.errors import Unauthenticated
from router.openai_errors import error_body, error_headers

__all__ = ["RequireApiKey"]

_OPEN: Final = frozenset({"/live", "/ready"})
"""Orchestrators ask these, without a key, and learn nothing else."""


class RequireApiKey:
    """ASGI middleware. What it refuses, it refuses before a byte of the body is read."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            try:
                client = self._keys.identify(Headers(scope=scope).get("authorization"))
            except Unauthenticated as error:
                headers = error_headers(error) | {"www-authenticate": "Bearer"}
                refusal = Response(error_body(error), error.http_status, headers)
                await refusal(scope, receive, send)
                return
            CURRENT_CLIENT.set(client)
        await self._app(scope, receive, send)
