"""The standard gRPC health service.

grpc_health's own writes to watchers while it holds the lock that `set` needs: one that does not read stops
the reports to all, and the server's shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Status by service name; each watcher is sent the latest one, at its own pace."""

    def __init__(self) -> None:
        self._statuses: Final[dict[str, Any]] = {}
        self._changed: Final[set[asyncio.Event]] = set()
        """One for each watcher."""
        self._is_shut_down = False

    def set(self, service: str, *, serving: bool) -> None:
        if not self._is_shut_down:
            self._statuses[service] = _Response.SERVING if serving else _Response.NOT_SERVING
            self._tell()

    def shut_down(self) -> None:
        """Report every service as not serving, for ever."""
        for service in self._statuses:
            self.set(service, serving=False)
        self._is_shut_down = True

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    async def Check(self, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: N802
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return _Response(status=status)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        return health_pb2.HealthListResponse(
            statuses={service: _Response(status=status) for service, status in self._statuses.items()}
        )

    async def Watch(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:  # noqa: N802
        changed, sent = asyncio.Event(), None
        self._changed.add(changed)
        try:
            while True:
                changed.clear()
                status = self._statuses.get(request.service, _Response.SERVICE_UNKNOWN)
                if status != sent:
                    yield _Response(status=status)  # waits for a client that does not read
                    sent = status
                await changed.wait()
        finally:
            self._changed.remove(changed)
