"""Runs the gRPC frontend inside the caller's event loop.

```
server = GrpcFrontend(Models([generation]), GrpcConfig(host="0.0.0.0", port=50051))
await server.start()            # OSError: the port is taken
...
await server.stop(grace_s=30)
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from common.background import supervised
from router.api.access import OPEN_ACCESS, Access, ApiKeys
from router.api.generation.models import ServedModels
from router.api.generation.tenants import CURRENT_TENANT
from router.api.grpc.service import RouterService
from router.errors import Unauthenticated
from rpc.baton.v1 import router_pb2, router_pb2_grpc
from rpc.health import HealthService
from rpc.server import stopped

_OPEN: Final = "/grpc.health.v1.Health/"
"""Open to orchestrators without a key."""

_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):
    """A server interceptor, which covers all services of a server."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_RequestT, _ResponseT] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_RequestT, _ResponseT] | None:
        if not handler_call_details.method.startswith(_OPEN):
            # Of several the first, as over HTTP.
            metadata = handler_call_details.invocation_metadata
            authorization = next((value for key, value in metadata if key == "authorization"), None)
            try:
                tenant = self._keys.identify(authorization if isinstance(authorization, str) else None)
            except Unauthenticated as error:
                return _refusal(error)
            CURRENT_TENANT.set(tenant)
        return await continuation(handler_call_details)


def _refusal(error: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that refuses calls of any kind before reading them."""

    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        await context.abort(error.grpc_status, error.message)

    return grpc.stream_stream_rpc_method_handler(refuse)


_SERVICE: Final = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
_READINESS_POLL_S: Final = 0.5
_MAX_PENDING: Final = 1 << 16
"""Calls that have arrived and wait for the event loop. gRPC drops some of 1,000 by default, whose clients get
CANCELLED without a reason."""
_UNWIND_S: Final = 5.0
"""Time for cancelled calls to send their error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcConfig:
    host: str = "127.0.0.1"
    port: int = 50051
    """0: any free port; see GrpcFrontend.port."""
    shared: bool = False
    """Whether other processes serve on the same port."""
    max_message_bytes: int = 4 << 20
    """Larger requests get RESOURCE_EXHAUSTED."""
    access: Access = OPEN_ACCESS


class GrpcFrontend:
    """`baton.v1.Router`, reflection, and the standard health service, where each model is a service too."""

    def __init__(self, models: ServedModels, config: GrpcConfig) -> None:
        self._models = models
        self._config = config
        self._health = HealthService()
        self._server: grpc.aio.Server | None = None
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        """The port that it listens on, after `start`."""

    async def start(self) -> None:
        """Return when calls are accepted. Raises OSError if the address cannot be bound."""
        config, access = self._config, self._config.access
        server = grpc.aio.server(
            interceptors=() if access.keys is None else (ApiKeyInterceptor(access.keys),),
            options=(
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.so_reuseport", int(config.shared)),
                ("grpc.server.max_pending_requests", _MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
            ),
        )
        router_pb2_grpc.add_RouterServicer_to_server(  # type: ignore[no-untyped-call]
            RouterService(self._models), server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        address = f"{_bracketed(config.host)}:{config.port}"
        try:
            if access.tls is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, access.tls.credentials())
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        self._publish_health()
        await server.start()
        self._server = server
        self._watch = supervised(self._watch_readiness(), "grpc-health")

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, give running ones `grace_s`, then end them with UNAVAILABLE."""
        if self._server is None or self._watch is None:
            return
        self._watch.cancel()
        self._health.shut_down()
        stopping = asyncio.create_task(stopped(self._server, grace_s + _UNWIND_S))
        done, _ = await asyncio.wait({stopping}, timeout=grace_s)
        if not done:
            self._models.fail_all()
        await stopping

    async def _watch_readiness(self) -> None:
        while True:
            await asyncio.sleep(_READINESS_POLL_S)
            self._publish_health()

    def _publish_health(self) -> None:
        for service in ("", _SERVICE):
            self._health.set(service, serving=self._models.ready())
        for generation in self._models:
            self._health.set(generation.model.name, serving=generation.ready())


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
