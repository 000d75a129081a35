"""gRPC's standard health service, with all of its methods."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health, health_pb2


class HealthService(health.aio.HealthServicer):  # type: ignore[misc]
    """Adds List, which grpc_health declares and does not implement."""

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        return health_pb2.HealthListResponse(
            statuses={
                service: health_pb2.HealthCheckResponse(status=status)
                for service, status in self._server_status.items()
            }
        )
