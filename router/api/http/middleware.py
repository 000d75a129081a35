"""ASGI middleware of the HTTP frontend: paths, names of servers on loopback, API keys."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.api.access import ApiKeys
from router.api.apis import APIS
from router.api.generation.tenants import ANYBODY, CURRENT_TENANT, Tenant
from router.api.http.refusal import error_response
from router.api.openai.errors import REQUEST_ID_HEADER
from router.api.page.routes import PAGE_PATHS, STATUS_PATH
from router.dispatch.sequence import clients_id_of
from router.errors import PermissionDenied, Unauthenticated


class ReturnRequestId:
    """ASGI middleware. Returns the x-request-id of a request in place of the router's own id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = scope["type"] == "http" and Headers(scope=scope).get(REQUEST_ID_HEADER)
        clients_id = clients_id_of(given or None)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = clients_id
            await send(message)

        await self._app(scope, receive, send_with_id if clients_id else send)


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


_LOCALHOST: Final = "localhost"


class RequireLocalName:
    """ASGI middleware. Refuses requests whose Host is a DNS name other than localhost (DNS rebinding).

    A web page of evil.example can have that name resolve to 127.0.0.1. For the browser, a local server is
    then of the page's own origin, and CORS does not apply. Only the Host header shows the page's name.

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


_OPEN: Final = frozenset({"/live", "/ready", "/health", "/ping"}) | PAGE_PATHS
"""Open without a key: probes of orchestrators, and the static files of the live page."""
_MONITORING: Final = frozenset({"/metrics", "/sd/workers", STATUS_PATH})
"""These reveal the load of all clients and the addresses of workers."""
_ADMIN: Final = frozenset(one.path for api in APIS for one in api.endpoints if one.changes_service)
_KEY_HEADERS: Final = tuple(api.key_header for api in APIS if api.key_header is not None)
_MONITORING_KEY: Final = "/metrics, /sd/workers and /status take a key of --metrics-key-file."


def _is_open(scope: Scope) -> bool:
    """Whether it is read without a key. `POST /` is a request to a model."""
    return scope["method"] in ("GET", "HEAD") and scope["path"] in _OPEN


class RequireApiKey:
    """ASGI middleware. Refuses requests before reading any of their body."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys | None,
        metrics_keys: ApiKeys | None,
        admin_keys: ApiKeys | None = None,
        *,
        rl: bool = False,
    ) -> None:
        """`keys` give access to requests, `metrics_keys` only to monitoring, `admin_keys` only to routes that
        change the service.

        None for `keys`: no authentication. None for `metrics_keys`: monitoring is open without `keys`, and
        closed with `keys`. None for `admin_keys`: the service cannot be changed, but with `rl`
        by all callers of requests.
        """
        self._app = app
        self._keys = keys
        self._metrics_keys = metrics_keys
        self._admin_keys = admin_keys
        self._is_open = rl and admin_keys is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope):
            headers = Headers(scope=scope)
            authorization = headers.get("authorization")
            for name in () if authorization is not None else _KEY_HEADERS:
                if (key := headers.get(name)) is not None:
                    authorization = f"Bearer {key}"
            try:
                if scope["path"] in _MONITORING:
                    self._admit_monitoring(authorization)
                elif scope["path"] in _ADMIN and not self._is_open:
                    self._admit_admin(scope["path"], authorization)
                else:
                    CURRENT_TENANT.set(self._tenant(authorization))
            except Unauthenticated as error:
                refusal = error_response(error, scope["path"])
                refusal.headers["www-authenticate"] = "Bearer"
                await refusal(scope, receive, send)
                return
            except PermissionDenied as error:
                await error_response(error, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _tenant(self, authorization: str | None) -> Tenant:
        if self._keys is None:
            return ANYBODY
        if self._known(self._metrics_keys, authorization) and not self._known(self._keys, authorization):
            raise PermissionDenied("This key is for monitoring only: /metrics, /sd/workers, /status.")
        return self._keys.identify(authorization)

    def _admit_admin(self, path: str, authorization: str | None) -> None:
        if self._admin_keys is None:
            raise PermissionDenied(f"{path} is closed; --admin-key-file opens it to its keys, --rl to all.")
        if not self._known(self._admin_keys, authorization):
            raise Unauthenticated(f"{path} takes a key of --admin-key-file.")

    def _admit_monitoring(self, authorization: str | None) -> None:
        if self._keys is None and self._metrics_keys is None:
            return
        if self._known(self._metrics_keys, authorization):
            return
        if self._known(self._keys, authorization):
            raise PermissionDenied(_MONITORING_KEY)
        raise Unauthenticated(_MONITORING_KEY)

    @staticmethod
    def _known(keys: ApiKeys | None, authorization: str | None) -> bool:
        return keys is not None and keys.find(authorization) is not None
