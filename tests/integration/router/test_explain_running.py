"""`router explain` of requests that run, or ended early: where they are or were, and what they wait for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import httpx
import pytest
from prometheus_client import CollectorRegistry

from router.api.generation.explanation import Explanation
from router.api.generation.generation import Generation
from router.api.generation.history import History
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.api.grpc.server import GrpcConfig, GrpcFrontend
from router.api.http.server import HttpConfig, HttpServer
from router.command.admin.endpoint import ManagedModel, admin_app
from router.command.admin.explain import explained
from rpc.baton.v1.router_pb2 import GenerateRequest, TokenIds
from rpc.baton.v1.router_pb2_grpc import RouterStub
from tests.integration.fake_cluster import PROMPT, Service, pair, service
from tests.integration.fake_worker import FakeWorker, decode_worker
from tests.integration.router.test_router_admission import NEED, reports
from tests.unit.router.api.generation.text.tokenizers import byte_level

MODEL = ServedModel(name="small", path=Path("none"), mode="disagg", max_model_len=64, vocab_size=1000)


@dataclass
class Router:
    served: Service
    generation: Generation
    explanation: Explanation
    target: str

    async def generate(self, request_id: str, n: int = 1) -> None:
        """Through gRPC, to its end."""
        async with grpc.aio.insecure_channel(self.target) as channel:
            request = GenerateRequest(request_id=request_id, token_ids=TokenIds(ids=PROMPT), n=n)
            request.sampling.max_tokens = 3
            async for _ in RouterStub(channel).Generate(request):  # type: ignore[no-untyped-call]
                pass

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        server = HttpServer(ServedModels([self.generation]), HttpConfig(port=0), metrics=CollectorRegistry())
        await server.start()
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
                yield client
        finally:
            await server.stop(grace_s=0.0)

    async def until(self, request_id: str, *stages: str) -> dict[str, Any]:
        """What is known of it once its completions are in these stages."""
        async with asyncio.timeout(30):
            while True:
                found = self.explanation.find(request_id)
                completions = [] if found is None else found["completions"]
                if found is not None and [c.get("now", {}).get("stage") for c in completions] == list(stages):
                    return found
                await asyncio.sleep(0.005)


@asynccontextmanager
async def router(*workers: FakeWorker) -> AsyncIterator[Router]:
    tokenizer = Tokenizer(byte_level(), vocab_size=MODEL.vocab_size)
    async with service(*workers) as served:
        history = History(10)
        generation = Generation(MODEL, tokenizer, served.dispatcher, history=history)
        explanation = Explanation(generation, history, served.dispatcher.statuses)
        server = GrpcFrontend(ServedModels([generation]), GrpcConfig(port=0))
        await server.start()
        try:
            yield Router(served, generation, explanation, f"127.0.0.1:{server.port}")
        finally:
            await server.stop(0.0)


async def test_a_request_is_explained_in_every_stage_of_its_way_from_worker_to_worker() -> None:
    prefill, decode = pair(
        prefill={"waits_before": {"start", "token", "transfer"}}, decode={"waits_before": {"reserve"}}
    )
    async with router(prefill, decode) as opened:
        await reports(opened.served, decode, NEED - 1)
        running = asyncio.create_task(opened.generate("mine"))
        found = await opened.until("mine", "router")
        assert found["outcome"] == "running"
        assert found["completions"][0]["now"]["waits_for"] == "pages"
        assert list(explained(found))[1:3] == [
            "  now: in the router, not sent to a worker",
            "  waits for pages: no decode worker has room for the prompt",
        ]

        await reports(opened.served, decode, NEED)
        await opened.until("mine", "queue")
        await reports(opened.served, prefill, 50, waiting=1, waits_for="budget")
        found = await opened.until("mine", "queue")
        assert list(explained(found))[1:3] == [
            "  now: in the queue of prefill-0",
            "  waits for budget: the token budget of each step is used up by requests before it",
        ]
        assert found["completions"][0]["prefill_s"] == 0
        assert found["completions"][0]["now"]["computed_tokens"] == 0

        prefill.behaviour.waits_before.discard("start")
        found = await opened.until("mine", "prefill")
        assert found["completions"][0]["now"]["waits_for"] == ""
        assert list(explained(found))[1] == "  now: prefill-0 computes the prompt, 0 tokens so far"

        prefill.behaviour.waits_before.discard("token")
        found = await opened.until("mine", "reserve")
        assert list(explained(found))[2] == "  waits for pages: it has no free KV pages"

        decode.behaviour.waits_before.discard("reserve")
        decode.behaviour.token_s = 0.05
        found = await opened.until("mine", "transfer")
        assert list(explained(found))[1] == (
            "  now: the prompt is computed; its KV is being transferred to decode-0"
        )
        assert "since the first token" in list(explained(found))[3]

        prefill.behaviour.waits_before.discard("transfer")
        found = await opened.until("mine", "decode")
        assert found["completions"][0]["now"]["worker"] == "decode-0"
        await running
        ended = opened.explanation.find("mine")
        assert ended is not None
        assert ended["outcome"] == "ok"
        assert "now" not in ended["completions"][0]


async def test_explain_shows_when_how_often_why_and_for_how_long_a_request_was_preempted() -> None:
    worker = decode_worker("decode-0", waits_before={"token"})
    async with router(worker) as opened:
        running = asyncio.create_task(opened.generate("mine"))
        await opened.until("mine", "prefill")
        [submitted] = worker.commands("submit")
        here = {"request_id": submitted.submit.work.request_id}

        worker.report(waiting=1, waits_for="slots")
        worker.say(preempted=[{**here, "reason": "pages"}])
        found = await opened.until("mine", "preempted")
        lines = list(explained(found))
        assert lines[1] == "  now: preempted, in the queue of decode-0 again, 0 tokens so far"
        assert lines[2] == "  waits for slots: --max-running-requests are running"
        [line] = [line for line in lines if "preempted by" in line]
        assert re.fullmatch(
            r"  preempted by decode-0 after [\d.]+ ms, waits for [\d.]+ ms:"
            r" running requests needed its KV pages",
            line,
        )

        worker.say(resumed=[{**here, "waited_s": 1.5}])
        found = await opened.until("mine", "prefill")
        assert any("waited 1.50 s" in line for line in explained(found))

        worker.say(preempted=[{**here, "reason": "policy"}])
        await opened.until("mine", "preempted")
        worker.say(resumed=[{**here, "waited_s": 0.25}])
        worker.behaviour.waits_before.clear()
        await running
        ended = opened.explanation.find("mine")
        assert ended is not None
        told = [line for line in explained(ended) if "preempted" in line]
        assert "(1 of 2)" in told[0]
        assert "waited 1.50 s: running requests needed its KV pages" in told[0]
        assert "(2 of 2)" in told[1]
        assert "waited 250.0 ms: a request of higher priority" in told[1]


async def test_completions_of_one_request_are_explained_one_by_one() -> None:
    worker = decode_worker("decode-0", waits_before={"token"})
    async with router(worker) as opened:
        running = asyncio.create_task(opened.generate("two", n=2))
        lines = list(explained(await opened.until("two", "prefill", "prefill")))
        assert [line for line in lines if line.startswith("completion")] == ["completion 0:", "completion 1:"]
        worker.behaviour.waits_before.clear()
        await running


async def test_a_request_without_a_ready_worker_says_so() -> None:
    worker = decode_worker("decode-0", waits_before={"start"})
    async with router(worker) as opened:
        running = asyncio.create_task(opened.generate("lost"))
        await opened.until("lost", "queue")
        await worker.stop()
        found = await opened.until("lost", "router")
        assert found["completions"][0]["now"]["waits_for"] in ("retry", "workers")
        worker.behaviour.waits_before.clear()
        await worker.revive()
        await running


@pytest.mark.parametrize(
    ("held", "stage", "where"),
    [
        ("start", "queue", "in the queue of decode-0"),
        ("token", "prefill", "decode-0 computes the prompt, 0 tokens so far"),
    ],
)
async def test_a_request_that_missed_its_deadline_says_where_its_time_went(
    held: str, stage: str, where: str
) -> None:
    worker = decode_worker("decode-0", waits_before={held})
    async with router(worker) as opened:
        asked = {"prompt": PROMPT, "max_tokens": 3, "timeout": 0.2}
        async with opened.http() as client:
            refused = await client.post("/v1/completions", json=asked)
        assert refused.status_code == 504
        ended = opened.explanation.find(refused.headers["x-request-id"])
        assert ended is not None
        [completion] = ended["completions"]
        lines = list(explained(ended))
        assert "the request's timeout passed" in lines[0]
        assert lines[1] == f"  at the end: {where}"
        assert lines[-1].startswith("  until then: queue ")
        assert completion[f"{stage}_s"] == pytest.approx(completion["e2e_s"], rel=0.5)


@pytest.mark.parametrize("by", ["disconnect", "abort"])
async def test_a_request_that_its_client_ended_says_where_its_time_went(by: str) -> None:
    worker = decode_worker("decode-0", waits_before={"token"})
    async with router(worker) as opened:
        running = asyncio.create_task(opened.generate("left", n=2))
        await opened.until("left", "prefill", "prefill")
        if by == "abort":
            opened.generation.abort("left")
        else:
            running.cancel()
        async with asyncio.timeout(30):
            while opened.generation._running:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        found = opened.explanation.find("left")
        assert found is not None
        assert found["outcome"] == "abort"
        told = [line for line in explained(found) if line.startswith("  at the end")]
        assert told == ["  at the end: decode-0 computes the prompt, 0 tokens so far"] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_of_the_http_api_is_found_by_its_id_while_it_runs(stream: bool) -> None:
    worker = decode_worker("decode-0", waits_before={"start"})
    async with router(worker) as opened:
        admin = admin_app({"small": ManagedModel(Mock(), Mock(), explain=opened.explanation.find)})
        async with (
            opened.http() as client,
            httpx.AsyncClient(transport=httpx.ASGITransport(admin), base_url="http://localhost") as operator,
        ):
            asked = {"prompt": PROMPT, "max_tokens": 3, "stream": stream}
            running = asyncio.create_task(client.post("/v1/completions", json=asked))
            async with asyncio.timeout(30):
                while not opened.generation._running:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
            [(_, request_id)] = opened.generation._running
            await opened.until(request_id, "queue")
            found = (await operator.get(f"/requests/{request_id}")).json()
            assert found["completions"][0]["now"]["worker"] == "decode-0"
            worker.behaviour.waits_before.clear()
            assert (await running).headers["x-request-id"] == request_id
