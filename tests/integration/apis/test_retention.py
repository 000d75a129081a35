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
    work = frontends.dispatcher.calls[-1].request
    return work.retention if work.HasField("retention") else None


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


async def test_anthropics_marks_retain_the_prompt_up_to_them_and_are_in_the_usage(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    async def ask(**fields: Any) -> tuple[dict[str, Any], str, list[tuple[str, float]]]:
        """Usage, prompt, and what of it is retained for how long."""
        body = {"model": "small", "max_tokens": 5, "messages": HI} | fields
        usage = (await http.post("/v1/messages", json=body)).json()["usage"]
        decode, call = frontends.generation.tokenizer.decode, frontends.dispatcher.calls[-1]
        assert call.request.HasField("retention")
        prefixes = [(decode(call.prompt[: p.tokens]), p.seconds) for p in call.request.retention.prefixes]
        sizes = [prefix.tokens for prefix in call.request.retention.prefixes] or [len(call.prompt)]
        read, created = usage["cache_read_input_tokens"], sum(usage["cache_creation"].values())
        assert created == usage["cache_creation_input_tokens"] == max(0, max(sizes) - read)
        assert usage["input_tokens"] + read + created == len(call.prompt)
        return usage, decode(call.prompt), prefixes

    text = {"type": "text", "text": "What is it?", "cache_control": {"type": "ephemeral"}}
    asked = [{"role": "user", "content": [text, {"type": "text", "text": "Say it."}]}]
    usage, prompt, [(retained, seconds)] = await ask(messages=asked)
    assert retained.endswith("What is it?")
    assert prompt.startswith(retained + "\nSay it.")
    assert seconds == 300.0
    assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == 0
    system = [{"type": "text", "text": "Be brief.", "cache_control": HOUR}]
    _, _, [(first, hour), (second, minutes)] = await ask(messages=asked, system=system)
    assert (hour, minutes) == (3600.0, 300.0)
    assert first.endswith("Be brief.")
    assert second.startswith(first)
    usage, _, _ = await ask(cache_control=HOUR, prompt_cache_key="k")
    assert retention(frontends) == worker_pb2.Retention(key="k", seconds=3600.0)
    assert (usage["input_tokens"], usage["cache_creation"]["ephemeral_5m_input_tokens"]) == (0, 0)


async def test_a_message_without_marks_retains_nothing(frontends: Frontends, http: httpx.AsyncClient) -> None:
    body = {"model": "small", "max_tokens": 5, "messages": HI}
    usage = (await http.post("/v1/messages", json=body)).json()["usage"]
    assert retention(frontends) is None
    assert (usage["input_tokens"] > 0, usage["cache_creation_input_tokens"]) == (True, 0)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        (
            {
                "system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}],
                "cache_control": HOUR,
            },
            "cache_control.ttl",
        ),
        (
            {"system": [{"type": "text", "text": "a", "cache_control": HOUR}] * 5},
            "system.4.cache_control",
        ),
    ],
)
async def test_marks_that_anthropics_api_refuses_are_refused(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "small", "max_tokens": 5, "messages": HI} | fields
    answer = await http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert param in answer.text


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
