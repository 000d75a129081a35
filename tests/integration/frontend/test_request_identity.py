"""One name from the client to the workers: request id and W3C trace context."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from router.dispatch.sequence import CURRENT_REQUEST, RequestIdentity, TraceContext
from rpc.baton.v1.router_pb2 import GenerateRequest
from rpc.baton.v1.router_pb2_grpc import RouterStub
from tests.integration.fake_cluster import pair, service
from tests.integration.frontends import ScriptedDispatcher, open_frontends

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


def identities(dispatcher: ScriptedDispatcher) -> list[RequestIdentity]:
    """Identities of the calls from now on."""
    seen: list[RequestIdentity] = []
    script = dispatcher.script

    def looking(call: Any) -> Any:
        identity = CURRENT_REQUEST.get()
        assert identity is not None
        seen.append(identity)
        return script(call)

    dispatcher.script = looking
    return seen


@pytest.mark.parametrize("stream", [False, True])
async def test_an_http_requests_sequences_have_its_id_and_its_trace(folder: Path, stream: bool) -> None:
    async with open_frontends(folder) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        seen = identities(opened.dispatcher)
        body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "stream": stream}
        answer = await client.post("/v1/chat/completions", json=body, headers={"traceparent": TRACEPARENT})
        first, second = seen
        assert first is second
        assert first.id == answer.headers["x-request-id"]
        assert first.trace == TraceContext(TRACE, PARENT)
        assert first.operation == "chat"


async def test_requests_without_a_trace_begin_one_each(folder: Path) -> None:
    async with open_frontends(folder) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        seen = identities(opened.dispatcher)
        for _ in range(2):  # on one connection
            await client.post("/v1/completions", json={"prompt": "hi"})
        assert len({identity.trace.trace_id for identity in seen}) == 2
        assert seen[0].operation == "text_completion"


async def test_a_grpc_call_brings_its_trace_as_metadata(folder: Path) -> None:
    async with open_frontends(folder) as opened, grpc.aio.insecure_channel(opened.target) as channel:
        seen = identities(opened.dispatcher)
        request = GenerateRequest(request_id="mine", text="hi")
        async for _ in RouterStub(channel).Generate(request, metadata=(("traceparent", TRACEPARENT),)):
            pass
        [identity] = seen
        assert (identity.id, identity.trace.trace_id) == ("mine", TRACE)


async def test_a_clients_own_id_is_returned_whatever_the_answer_is(folder: Path) -> None:
    async with open_frontends(folder) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        seen = identities(opened.dispatcher)
        own = {"x-request-id": "op-77"}
        body = {"prompt": "hi"}
        answer = await client.post("/v1/completions", json=body, headers=own)
        streamed = await client.post("/v1/completions", json=body | {"stream": True}, headers=own)
        invalid = await client.post("/v1/completions", json={"prompt": 5}, headers=own)
        missing = await client.get("/nowhere", headers=own)
        assert [each.headers["x-request-id"] for each in (answer, streamed, invalid, missing)] == [
            "op-77"
        ] * 4
        assert [identity.clients_id for identity in seen] == ["op-77"] * 2
        assert len({identity.id for identity in seen}) == 2, "the router's own ids stay unique"
        assert answer.json()["id"] == seen[0].id


@pytest.mark.parametrize("unfit", ["", "x" * 129, "a b", "a\x01b", "é"])
async def test_an_id_unfit_for_logs_is_replaced_by_the_routers(folder: Path, unfit: str) -> None:
    async with open_frontends(folder) as opened, httpx.AsyncClient(base_url=opened.url) as client:
        headers = {b"x-request-id": unfit.encode("latin-1")}
        answer = await client.post("/v1/completions", json={"prompt": "hi"}, headers=headers)
        if answer.status_code == httpx.codes.OK:
            assert answer.headers["x-request-id"] == answer.json()["id"]
        else:  # the parser refuses control characters
            assert unfit == "a\x01b"


async def test_a_grpc_call_brings_its_id_as_metadata(folder: Path) -> None:
    async with open_frontends(folder) as opened, grpc.aio.insecure_channel(opened.target) as channel:
        seen = identities(opened.dispatcher)
        metadata = (("x-request-id", "op-78"),)
        call = RouterStub(channel).Generate(GenerateRequest(text="hi"), metadata=metadata)
        async for _ in call:
            pass
        assert ("x-request-id", "op-78") in list(await call.initial_metadata())
        assert seen[0].clients_id == "op-78"


async def test_both_workers_and_the_log_of_retries_name_the_request(caplog: pytest.LogCaptureFixture) -> None:
    prefill, decode = pair(decode={"fail_after": 2})
    identity = RequestIdentity("cmpl-7", TraceContext(TRACE, PARENT))
    CURRENT_REQUEST.set(identity)
    async with service(prefill, decode) as served:
        with caplog.at_level(logging.INFO, "router.dispatch"):
            await served.tokens()
        [ended] = served.metrics.recent.requests
    works = [command.submit.work for command in prefill.received if command.HasField("submit")]
    works += [command.reserve.work for command in decode.received if command.HasField("reserve")]
    assert len(works) == 4
    assert {work.name for work in works} == {"cmpl-7"}
    [traceparent] = {work.traceparent for work in works}
    assert traceparent.startswith(f"00-{TRACE}-")
    assert PARENT not in traceparent
    assert f"retrying request cmpl-7 ({traceparent})" in caplog.text
    assert ended.id == "cmpl-7"
