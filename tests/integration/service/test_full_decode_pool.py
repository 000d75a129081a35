"""Requests beyond the capacity of a decode worker's pool wait before their prefill; with real workers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.faults.support.local_cluster import LocalWorker
from tests.integration.reading import deltas_of
from tests.integration.tiny_cluster import worker
from worker.config import WorkerRole

PROMPTS = [[2 + (i * 7 + k) % 60 for k in range(40)] for i in range(16)]
SAMPLING = sampling_pb2.SamplingParams(
    max_tokens=24, top_p=1.0, repetition_penalty=1.0, ignore_eos=True, seed=7
)
ROLES = {WorkerRole.PREFILL: ROLE_PREFILL, WorkerRole.DECODE: ROLE_DECODE}


async def test_requests_wait_in_the_router_while_the_decode_pool_is_full(folder: Path) -> None:
    async with AsyncExitStack() as stack:
        pages = {WorkerRole.PREFILL: 256, WorkerRole.DECODE: 40}
        links = {
            role: await stack.enter_async_context(worker(folder, role, "loopback", num_pages=pages[role]))
            for role in ROLES
        }
        handles = [LocalWorker(f"{role.value}-0", ROLES[role], link.host) for role, link in links.items()]
        registry = await stack.enter_async_context(Registry(handles))
        assert await registry.wait_for_all(20.0)
        metrics = RouterMetrics()
        dispatcher = ClusterDispatcher(RouterConfig(model="tiny", mode=Mode.DISAGG), registry, metrics)
        (decode,) = registry.ready(ROLE_DECODE)
        queued: list[int] = []
        held_back: list[int] = []

        def look() -> None:
            queued.append(decode.load.room().queued_handoffs)
            held_back.append(len(dispatcher._admission))
            dispatcher._admission.admit_waiting()

        registry.watch(look)

        async def tokens(prompt: list[int]) -> list[int]:
            return [t async for delta in deltas_of(dispatcher, prompt, SAMPLING) for t in delta.token_ids]

        alone = [await tokens(prompt) for prompt in PROMPTS]
        assert max(held_back) == 0
        assert await asyncio.gather(*(tokens(prompt) for prompt in PROMPTS)) == alone
        assert max(held_back) > 4
        assert max(queued) <= 2  # one step's growth of those who run may take what was there a moment before
        assert not metrics.registry.get_sample_value(
            "baton_request_retries_total", {"failed_worker": "decode-0"}
        )
        for link in links.values():
            await link.all_pages_back()
