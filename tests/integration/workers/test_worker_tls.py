"""Mutual TLS on real sockets: a worker accepts its own router and no other client."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.channel import connect
from rpc.server import GrpcServer
from rpc.tls import NAME, Identity
from tests.unit.tiny import make_config
from worker.config import WorkerConfig, WorkerRole
from worker.process.host import WorkerHost

ROUTER, WORKER, STRANGER = (Identity.generate() for _ in range(3))


class Worker(worker_pb2_grpc.WorkerServicer):
    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(worker_id="w")


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = GrpcServer({"baton.v1.Worker": partial(worker_pb2_grpc.add_WorkerServicer_to_server, Worker())})
    port = server.bind("127.0.0.1", credentials=WORKER.serve(ROUTER.certificate))
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop()


async def describe(address: str, credentials: grpc.ChannelCredentials | None) -> str:
    async with connect(address, credentials) as channel:
        stub = worker_pb2_grpc.WorkerStub(channel)
        return (await stub.Describe(worker_pb2.DescribeRequest(), timeout=5)).worker_id


async def test_the_router_is_served(address: str) -> None:
    assert await describe(address, ROUTER.call(WORKER.certificate)) == "w"


@pytest.mark.parametrize(
    "credentials",
    [
        None,
        grpc.ssl_channel_credentials(WORKER.certificate),
        STRANGER.call(WORKER.certificate),
        Identity(ROUTER.certificate, STRANGER.key).call(WORKER.certificate),
    ],
    ids=["plaintext", "no certificate", "another certificate", "the router's certificate without its key"],
)
async def test_nobody_else_is(address: str, credentials: grpc.ChannelCredentials | None) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await describe(address, credentials)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_health_is_no_way_around_it(address: str) -> None:
    async with connect(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)


async def test_the_router_talks_to_no_impostor_on_a_worker_s_port(address: str) -> None:
    """A worker that restarted on another port, and another process on its old port."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await describe(address, ROUTER.call(STRANGER.certificate))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_old_tls_is_refused(address: str) -> None:
    host, port = address.split(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port)), timeout=5) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname=NAME)


async def test_a_real_worker_serves_the_router_whose_certificate_it_has(folder: Path) -> None:
    config = worker_config(folder, router_certificate=ROUTER.certificate)
    host = WorkerHost(config, on_death=lambda death: None)
    await host.start()
    try:
        assert host.certificate is not None
        assert await describe(host.address, ROUTER.call(host.certificate)) == "decode-0"
        with pytest.raises(grpc.aio.AioRpcError):
            await describe(host.address, STRANGER.call(host.certificate))
    finally:
        await host.stop()


def test_a_worker_without_client_authentication_listens_on_loopback_only(folder: Path) -> None:
    config = replace(worker_config(folder), host="10.0.0.1")
    with pytest.raises(ValueError, match=r"unauthenticated connections on 10\.0\.0\.1"):
        WorkerHost(config, on_death=lambda death: None)


def worker_config(folder: Path, router_certificate: bytes | None = None) -> WorkerConfig:
    return WorkerConfig(
        worker_id="decode-0",
        role=WorkerRole.DECODE,
        model="tiny",
        engine=make_config(folder),
        router_certificate=router_certificate,
    )


def test_a_key_is_not_shown_by_accident() -> None:
    assert b"PRIVATE KEY" in ROUTER.key
    assert "PRIVATE" not in repr(ROUTER)
