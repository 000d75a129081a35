"""The health service of routers and workers: watchers that read, and watchers that do not."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rpc.server import GrpcServer
from tests.integration.frontend.unread_watch import unread_watch
from tests.integration.frontends import Frontends

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def request(service: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=service)


async def test_a_watcher_that_does_not_read_delays_neither_reports_nor_the_stop(
    frontends: Frontends,
) -> None:
    async with unread_watch(frontends.grpc.port), grpc.aio.insecure_channel(frontends.target) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(request())
        assert (await watch.read()).status == SERVING
        frontends.dispatcher.is_ready = False
        assert (await watch.read()).status == NOT_SERVING
        frontends.dispatcher.is_ready = True
        assert (await watch.read()).status == SERVING
        async with asyncio.timeout(15.0):
            await frontends.grpc.stop(grace_s=0.1)


async def test_a_watcher_that_does_not_read_does_not_delay_the_stop_of_a_worker() -> None:
    server = GrpcServer({"baton.v1.Worker": lambda _: None})
    port = server.bind("127.0.0.1")
    await server.start()
    async with unread_watch(port):
        server.set_serving(True)
        server.set_serving(False)
        async with asyncio.timeout(10.0):
            await server.stop(0.1)


async def test_a_watcher_is_told_of_a_service_that_appears_and_of_the_end() -> None:
    server = GrpcServer({"baton.v1.Worker": lambda _: None})
    port = server.bind("127.0.0.1")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        other, watch = health.Watch(request("other")), health.Watch(request("baton.v1.Worker"))
        assert (await other.read()).status == UNKNOWN
        assert (await watch.read()).status == NOT_SERVING
        server.set_serving(True)
        assert (await watch.read()).status == SERVING
        stopping = asyncio.create_task(server.stop(5.0))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        other.cancel()
        await stopping


async def test_a_check_of_an_unknown_service_fails_and_all_are_listed() -> None:
    server = GrpcServer({"baton.v1.Worker": lambda _: None})
    port = server.bind("127.0.0.1")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="NOT_FOUND"):
            await health.Check(request("other"))
        listed = await health.List(health_pb2.HealthListRequest())
        assert {name: one.status for name, one in listed.statuses.items()} == {
            "": NOT_SERVING,
            "baton.v1.Worker": NOT_SERVING,
        }
    await server.stop()
