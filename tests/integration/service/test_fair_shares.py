"""API keys that share an overloaded worker take turns, from HTTP to the worker's queue and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from common.log_format import formatter
from engine.config import Policy
from router.api.access import Access, ApiKeys
from router.api.generation.generation import Generation
from router.api.generation.history import History
from router.api.generation.models import ServedModels
from router.api.generation.served_model import ServedModel
from router.api.generation.text.tokenizer import Tokenizer
from router.api.http.server import HttpConfig, HttpServer
from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.registry import Registry
from rpc.baton.v1.worker_pb2 import ROLE_DECODE
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.tiny_cluster import Link, before_each_step, commands_arrived, worker
from tests.unit.router.api.generation.text.tokenizers import byte_level
from worker.config import WorkerRole

LOUD, QUIET = "a-key-of-one-client", "a-key-of-another"
LENGTH = 32
"""Tokens of each prompt: a quantum."""


@asynccontextmanager
async def serving(folder: Path, history: History, **engine: Any) -> AsyncIterator[tuple[str, Link]]:
    """Where one worker is served over HTTP, to two API keys."""
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(worker(folder, WorkerRole.DECODE, None, **engine))
        registry = await stack.enter_async_context(
            Registry([LocalWorker("decode-0", ROLE_DECODE, link.host)])
        )
        assert await registry.wait_for_all(20.0)
        config = RouterConfig(model="tiny", mode=Mode.MIXED)
        dispatcher = ClusterDispatcher(config, registry, RouterMetrics())
        model = ServedModel(name="tiny", path=folder, mode="mixed", max_model_len=128, vocab_size=97)
        tokenizer = Tokenizer(byte_level(), vocab_size=model.vocab_size)
        server = HttpServer(
            ServedModels([Generation(model, tokenizer, dispatcher, history=history)]),
            HttpConfig(port=0, access=Access(ApiKeys({LOUD: "loud", QUIET: "quiet"}))),
            metrics=CollectorRegistry(),
            worker_targets=list,
        )
        await server.start()
        stack.push_async_callback(server.stop, 0.0)
        yield f"http://127.0.0.1:{server.port}", link


@pytest.mark.parametrize("fair", [True, False])
async def test_a_key_with_few_requests_does_not_wait_for_all_of_one_with_many(
    folder: Path, caplog: pytest.LogCaptureFixture, fair: bool
) -> None:
    caplog.set_level(logging.INFO, logger="router.api.generation.history")
    ended: list[str] = []
    history = History(100)
    settings = {"policy": Policy.FCFS, "max_running_requests": 1, "radix_cache": False}
    if fair:
        settings["tenant_quantum"] = LENGTH
    async with serving(folder, history, **settings) as (url, link), httpx.AsyncClient(timeout=60) as client:
        computes, may_compute = threading.Event(), threading.Event()

        def wait() -> None:
            computes.set()
            may_compute.wait(20.0)

        before_each_step(link.host, wait)

        async def ask(key: str, number: int) -> None:
            body = {"prompt": [number] * LENGTH, "max_tokens": 1, "ignore_eos": True}
            headers = {"authorization": f"Bearer {key}"}
            response = await client.post(f"{url}/v1/completions", json=body, headers=headers)
            assert response.status_code == 200, response.text
            ended.append(key)

        asking = [asyncio.create_task(ask(LOUD, 0))]
        assert await asyncio.to_thread(computes.wait, 20.0)
        asking += [asyncio.create_task(ask(LOUD, number)) for number in range(1, 9)]
        await commands_arrived(link.host, 8)
        asking += [asyncio.create_task(ask(QUIET, 50 + number)) for number in range(3)]
        await commands_arrived(link.host, 11)
        may_compute.set()
        await asyncio.gather(*asking)
    if fair:
        assert ended[:7].count(QUIET) == 3
    else:
        assert ended[-3:] == [QUIET] * 3
    records = [record for record in caplog.records if record.name == "router.api.generation.history"]
    lines = [json.loads(formatter("json").format(record)) for record in records]
    assert Counter(line["client"] for line in lines) == {"loud": 9, "quiet": 3}
    assert len({line["request"] for line in lines}) == 12
    assert {(line["event"], line["outcome"]) for line in lines} == {("request", "ok")}
    waits = [line["completions"][0]["waited"] for line in lines if line["client"] == "quiet"]
    assert all(waited.get("slots", 0) > 0 for waited in waits)
