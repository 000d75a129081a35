"""The live page: static files of this package, and the JSON that they display."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.api.endpoints.kinds import reads
from router.api.endpoints.record import ApiEndpoint, Backend
from router.errors import NotFound

STATUS_PATH: Final = "/status"
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/chat.js": ("chat.js", "text/javascript; charset=utf-8"),
    "/page/images.js": ("images.js", "text/javascript; charset=utf-8"),
    "/page/draw.js": ("draw.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
PAGE_PATHS: Final = frozenset(_FILES)
"""Open without a key: they are the same for every installation and contain no data."""
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def page_routes(statuses: Mapping[str, Callable[[], Awaitable[Mapping[str, Any]]]]) -> list[ApiEndpoint]:
    """GET / and what it loads; GET /status, the status of the model in `?model=`, or of the first one.

    `statuses`: by the model's name, at least one. Raises NotFound.
    """

    async def read_status(backend: Backend, request: Request) -> Response:
        name = request.query_params.get("model") or next(iter(statuses))
        if name not in statuses:
            raise NotFound(f"There is no model {name[:100]!r}; this server has {', '.join(statuses)}.")
        return Response(
            orjson.dumps({**await statuses[name](), "models": list(statuses)}),
            media_type="application/json",
            headers={"cache-control": "no-store"},
        )

    pages = [reads(path, _file(*file)) for path, file in _FILES.items()]
    return [*pages, ApiEndpoint(path=STATUS_PATH, serve=read_status, method="GET")]


def _file(name: str, media_type: str) -> Callable[[Backend, Request], Response]:
    content = files("router.api.page").joinpath("static", name).read_bytes()

    return lambda *_: Response(content, headers={**_HEADERS, "content-type": media_type})
