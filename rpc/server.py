"""An asyncio gRPC server with the standard health and reflection services wired in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rpc.channel import SERVER_OPTIONS
from rpc.health import HealthService

_log = logging.getLogger(__name__)

_OVERALL: Final = ""
"""The health service's name for the whole process."""


_CLOSE_S: Final = 5.0
"""For calls to end that were cancelled, and connections to close."""


Register: TypeAlias = Callable[[grpc.aio.Server], None]
"""Adds a servicer, e.g. `lambda s: add_WorkerServicer_to_server(servicer, s)`."""


class AddressTaken(OSError):
    """The address cannot be bound."""


class GrpcServer:
    """Serves some services, named in full (`baton.v1.Worker`), plus health and reflection.

    Health starts as NOT_SERVING until `set_serving`.
    """

    def __init__(self, services: Mapping[str, Register]) -> None:
        self._services = tuple(services)
        self._health = HealthService()
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        for register in services.values():
            register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._services, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )

    def bind(self, host: str, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> int:
        """Bind the server, before `start`. Returns the port, which the system chooses if `port` is 0.

        `credentials`: from `Identity.serve`; None: every client may connect. Raises PortTaken.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise AddressTaken(f"cannot listen on {address}; is another server running there?") from error
        return bound

    async def start(self) -> None:
        self.set_serving(False)
        await self._server.start()

    def set_serving(self, serving: bool) -> None:
        """Set the status that the health service reports."""
        for name in (_OVERALL, *self._services):
            self._health.set(name, serving=serving)

    async def stop(self, grace_s: float | None = None) -> None:
        """Refuse new calls, and cancel those that still run after `grace_s` seconds (None: at once)."""
        self._health.shut_down()
        await stopped(self._server, grace_s or 0.0)

    async def wait(self) -> None:
        await self._server.wait_for_termination()


async def stopped(server: grpc.aio.Server, grace_s: float) -> None:
    """Refuse new calls, and cancel those that still run after `grace_s`. Returns within 5 s more."""
    stopping = asyncio.create_task(server.stop(grace_s), name="grpc-stop")
    done, _ = await asyncio.wait({stopping}, timeout=grace_s + _CLOSE_S)
    if not done:
        _log.warning("the gRPC server has not ended within %g s; leaving its connections", grace_s + _CLOSE_S)
        stopping.cancel()
