"""Stopping: running requests get their time, then an error; nothing hangs, no port stays open."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any
from unittest.mock import Mock

import grpc
import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry

from router.api.grpc.server import GrpcConfig, GrpcFrontend
from router.api.http.server import HttpConfig, HttpServer
from router.command.server import Service
from rpc.baton.v1.router_pb2 import GenerateRequest
from rpc.baton.v1.router_pb2_grpc import RouterStub
from tests.integration.frontends import Frontends

TEXT = "Hello, wörld! 你好 👋🏽 and goodbye."


async def http_text(frontends: Frontends) -> str:
    async with openai.AsyncOpenAI(base_url=f"{frontends.url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.completions.create(model="small", prompt="hi", max_tokens=60, stream=True)
        return "".join([event.choices[0].text async for event in stream])


async def grpc_text(frontends: Frontends) -> str:
    async with grpc.aio.insecure_channel(frontends.target) as channel:
        router: Any = RouterStub(channel)
        return "".join([response.text async for response in router.Generate(GenerateRequest(text="hi"))])


async def until_given(frontends: Frontends, tokens: int) -> None:
    """Until both requests have got this many tokens or more."""
    async with asyncio.timeout(30):
        while [call.deltas >= tokens for call in frontends.dispatcher.calls] != [True, True]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_running_requests_finish_and_new_ones_are_refused(frontends: Frontends) -> None:
    frontends.dispatcher.pause_s = 0.05
    running = [asyncio.create_task(http_text(frontends)), asyncio.create_task(grpc_text(frontends))]
    await until_given(frontends, 1)
    stopping = asyncio.gather(frontends.http.stop(grace_s=20), frontends.grpc.stop(grace_s=20))
    await asyncio.sleep(0.3)
    with pytest.raises(openai.APIConnectionError):
        await http_text(frontends)
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await grpc_text(frontends)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert await asyncio.gather(*running) == [TEXT, TEXT]
    async with asyncio.timeout(30):
        await stopping


async def test_requests_that_outlast_the_drain_end_with_the_reason(frontends: Frontends) -> None:
    frontends.dispatcher.hang_after = 3
    running = [asyncio.create_task(http_text(frontends)), asyncio.create_task(grpc_text(frontends))]
    await until_given(frontends, 3)
    async with asyncio.timeout(30):
        await asyncio.gather(frontends.http.stop(grace_s=0.2), frontends.grpc.stop(grace_s=0.2))
    over_http, over_grpc = await asyncio.gather(*running, return_exceptions=True)
    assert isinstance(over_http, openai.APIError)
    assert "send the request again" in over_http.message
    assert over_http.code == "shutting_down"
    assert isinstance(over_grpc, grpc.aio.AioRpcError)
    assert over_grpc.code() == grpc.StatusCode.UNAVAILABLE
    assert "send the request again" in (over_grpc.details() or "")
    await frontends.dispatcher.until_all_given_up()


async def test_a_second_signal_ends_running_streams_with_the_reason(
    frontends: Frontends, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.command.server")
    frontends.dispatcher.hang_after = 3
    running = [asyncio.create_task(http_text(frontends)), asyncio.create_task(grpc_text(frontends))]
    await until_given(frontends, 3)
    [generation] = frontends.models

    async def drain(timeout_s: float, *, workers_return: bool) -> int:
        await asyncio.wait(running, timeout=timeout_s)
        return sum(not request.done() for request in running)

    model = Mock(generation=generation, dispatcher=Mock(drain=drain))
    service = Service([model], frontends.http, frontends.grpc, Mock(), Mock())
    again = asyncio.Event()
    draining = asyncio.create_task(service.drain(60, again))
    await asyncio.sleep(0.1)
    assert not running[0].done()
    assert "a second Ctrl-C or SIGTERM ends them" in caplog.text
    again.set()
    async with asyncio.timeout(20):
        over_http, over_grpc = await asyncio.gather(*running, return_exceptions=True)
        await draining
    assert isinstance(over_http, openai.APIError)
    assert over_http.code == "shutting_down"
    assert isinstance(over_grpc, grpc.aio.AioRpcError)
    assert over_grpc.code() == grpc.StatusCode.UNAVAILABLE


async def test_an_idle_connection_does_not_delay_the_end(frontends: Frontends) -> None:
    async with httpx.AsyncClient(base_url=frontends.url) as client:
        await client.get("/live")
        async with asyncio.timeout(10):
            await frontends.http.stop(grace_s=30)


async def test_stopping_twice_is_stopping_once(frontends: Frontends) -> None:
    for _ in range(2):
        await frontends.http.stop(grace_s=1)
        await frontends.grpc.stop(grace_s=1)


async def test_a_port_that_is_taken_is_an_error_of_the_start(frontends: Frontends) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        http = HttpServer(frontends.models, HttpConfig(port=port), metrics=CollectorRegistry())
        with pytest.raises(OSError):
            await http.start()
        with pytest.raises(OSError):
            await GrpcFrontend(frontends.models, GrpcConfig(port=port)).start()
