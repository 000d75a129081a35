"""What each API says about the prefix cache reaches the dispatcher."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.request_limits import RequestLimits
from rpc.baton.v1 import worker_pb2
from rpc.router_client import CallFailed, RouterClient
from tests.integration.frontends import Frontends, open_frontends

HI = [{"role": "user", "content": "hi"}]
HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.fixture
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder, limits=RequestLimits(retention=True)) as served:
        yield served


@pytest.fixture
async def http(frontends: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontends.url) as client:
        yield client


def retention(frontends: Frontends) -> worker_pb2.Retention | None:
    return frontends.dispatcher.calls[-1].retention


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/responses", {"input": "hi"}),
    ],
)
async def test_openais_apis_retain_for_a_day(
    frontends: Frontends, http: httpx.AsyncClient, path: str, prompt: dict[str, Any]
) -> None:
    body = prompt | {"prompt_cache_key": "chat-7"}
    for value, seconds in (("24h", 86400.0), ("in_memory", None), (None, None)):
        answer = await http.post(path, json=body | {"prompt_cache_retention": value})
        assert answer.status_code == 200, answer.text
        found = retention(frontends)
        assert found == (None if seconds is None else worker_pb2.Retention(key="chat-7", seconds=seconds))
    refused = await http.post(path, json=body | {"prompt_cache_retention": "1y"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_cache_retention")


async def test_anthropics_marks_retain_for_the_longest_time_and_are_in_the_usage(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    text = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
    body: dict[str, Any] = {
        "model": "small",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [text]}],
    }
    usage = (await http.post("/v1/messages", json=body)).json()["usage"]
    assert retention(frontends) == worker_pb2.Retention(seconds=300.0)
    assert (usage["input_tokens"], usage["cache_creation_input_tokens"] > 0) == (0, True)
    body |= {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}],
        "prompt_cache_key": "k",
    }
    await http.post("/v1/messages", json=body)
    assert retention(frontends) == worker_pb2.Retention(key="k", seconds=3600.0)
    usage = (await http.post("/v1/messages", json=body | {"system": "x", "messages": HI})).json()["usage"]
    assert retention(frontends) is None
    assert (usage["input_tokens"] > 0, usage["cache_creation_input_tokens"]) == (True, 0)
    wrong = body | {"cache_control": {"type": "ephemeral", "ttl": "2h"}}
    assert (await http.post("/v1/messages", json=wrong)).status_code == 400


async def test_a_session_is_released_over_http_and_grpc(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    answer = await http.post("/v1/sessions/a%2Fb/release")
    assert answer.json() == {"object": "session", "key": "a/b", "released": True}
    async with RouterClient(frontends.target) as client:
        async for _ in client.generate("hi", max_tokens=3, cache_key="c", retain_s=90.0):
            pass
        assert retention(frontends) == worker_pb2.Retention(key="c", seconds=90.0)
        await client.release_session("c")
        with pytest.raises(CallFailed, match="retain_s"):
            async for _ in client.generate("hi", max_tokens=3, retain_s=1e9):
                pass
    assert frontends.dispatcher.released == [("anybody", "a/b"), ("anybody", "c")]


async def test_a_server_that_retains_nothing_says_so_in_the_usage(folder: Path) -> None:
    async with open_frontends(folder) as frontends, httpx.AsyncClient(base_url=frontends.url) as http:
        body = {"model": "small", "max_tokens": 5, "messages": HI, "cache_control": HOUR}
        usage = (await http.post("/v1/messages", json=body)).json()["usage"]
        assert retention(frontends) is None
        assert usage["cache_creation_input_tokens"] == 0
