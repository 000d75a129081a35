"""Real workers size prompt chunks beside decodes by the mean of their steps, as simulated ones do."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from engine.config import STEP_SHARE
from router.config.choices import Mode
from router.placement import Targets
from rpc.baton.v1 import worker_pb2
from simulator.deployment import Deployment
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, before_each_step, work, worker
from worker.config import WorkerRole

CHUNK = 100
SMALLEST = 64
"""Smallest chunk of a worker whose decodes by themselves are slower than the target, whatever they and
prompts take.
"""


def submit_while_decoding(link: Link, job: worker_pb2.Work, *, step: int) -> None:
    """The engine waits before this step until the worker has got `job`."""
    loop, steps, arrived = asyncio.get_running_loop(), count(), Event()
    inbox: Any = link.host._parts.inbox
    post = inbox.post

    def posting(*args: Any, **keywords: Any) -> None:
        post(*args, **keywords)
        arrived.set()

    def act() -> None:
        if next(steps) == step:
            inbox.post = posting
            asyncio.run_coroutine_threadsafe(link.submit(job), loop)
            assert arrived.wait(30.0)

    before_each_step(link.host, act)


async def tokens_and_chunks(link: Link, job: worker_pb2.Work) -> tuple[list[int], list[int]]:
    """The answer, and how many prompt tokens each step computed."""
    ids, chunks = list[int](), list[int]()
    while True:
        event = await link.next(job.request_id, "tokens")
        ids += event.ids
        chunks += [chunk.num_tokens for chunk in event.chunks]
        if event.finish:
            return ids, chunks


@pytest.mark.parametrize(
    ("target_s", "least"), [(1e-9, SMALLEST), (1000.0, CHUNK - CHUNK % 4 - 4)], ids=["slow", "fast"]
)
async def test_a_prompt_progresses_beside_decodes_that_meet_the_target_or_exceed_it(
    folder: Path, oracle: Oracle, target_s: float, least: int
) -> None:
    async with worker(folder, WorkerRole.DECODE, None, chunk_budget=CHUNK, tpot_target_s=target_s) as link:
        answer, prompt = work([5, 6, 7], max_tokens=60), work([i * i % 97 for i in range(110)], max_tokens=4)
        submit_while_decoding(link, prompt, step=20)
        await link.submit(answer)
        for job in (answer, prompt):
            await link.next(job.request_id, "started")
            ids, chunks = await tokens_and_chunks(link, job)
            assert ids == oracle(list(job.prompt), job.sampling.max_tokens)
        info = await link.stub.Describe(worker_pb2.DescribeRequest())
    assert least <= chunks[0] <= CHUNK
    assert sum(chunks) == 110
    assert info.step_target_s == pytest.approx(STEP_SHARE * target_s)


def test_simulated_workers_of_an_adaptive_cluster_have_the_target_of_real_ones() -> None:
    targets = Targets(ttft_s=0.5, tpot_s=0.015)
    for simulated in Deployment(mode=Mode.ADAPTIVE, targets=targets).simulation().workers:
        assert simulated.engine.scheduler.config.tpot_target_s == targets.tpot_s
        assert simulated.engine.scheduler.config.itl_target_s is None
