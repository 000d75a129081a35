"""Whenever a request is given up, on either worker, every page comes back and the next request is right."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Pair, pair, slow_down, work, worker
from worker.config import WorkerRole

POINTS = ["queued", "started", "reserving", "reserved", "attached", "first token", "arrived", "decoding"]


def prompt(seed: int, length: int = 80) -> list[int]:
    return [(seed * 31 + i * i * 7) % 97 for i in range(length)]


async def advance(workers: Pair, job: worker_pb2.Work, point: str) -> None:
    """Take a request as far as `point`, as the router does."""
    steps = {
        "queued": lambda: workers.prefill.submit(job, handoff=True),
        "started": lambda: workers.prefill.next(job.request_id, "started"),
        "reserving": lambda: workers.reserve(job),
        "reserved": lambda: workers.decode.next(job.request_id, "reserved"),
        "attached": lambda: attach(workers),
        "first token": lambda: workers.prefill.next(job.request_id, "tokens"),
        "arrived": lambda: workers.decode.next(job.request_id, "arrived"),
        "decoding": lambda: workers.decode.next(job.request_id, "tokens"),
    }
    reserved: list[Any] = []

    async def attach(workers: Pair) -> None:
        await workers.prefill.send(attach=worker_pb2.Attach(ticket=reserved[0].ticket))

    for name in POINTS[: POINTS.index(point) + 1]:
        result = await steps[name]()
        if name == "reserved":
            reserved.append(result)


@pytest.mark.parametrize("who", ["both", "prefill", "decode"])
@pytest.mark.parametrize("point", POINTS)
async def test_abort_at_every_point_of_a_handoff(folder: Path, oracle: Oracle, point: str, who: str) -> None:
    async with pair(folder) as workers:
        slow_down(workers.prefill.host, seconds=0.02)
        job = work(prompt(1), max_tokens=40)
        await advance(workers, job, point)
        if who in ("both", "prefill"):
            await workers.prefill.abort(job.request_id)
        if who in ("both", "decode"):
            await workers.decode.abort(job.request_id)
        if who != "both":
            await asyncio.sleep(0.3)  # the other side notices, or finishes
            await workers.prefill.abort(job.request_id)
            await workers.decode.abort(job.request_id)
        await workers.all_pages_back()
        assert await workers.generate(work(prompt(1), max_tokens=6)) == oracle(prompt(1), 6)
        await workers.all_pages_back()


async def test_a_router_that_vanishes_in_the_middle_leaves_nothing_behind(folder: Path) -> None:
    async with pair(folder) as workers:
        slow_down(workers.prefill.host, seconds=0.02)
        for seed, point in enumerate(POINTS):
            await advance(workers, work(prompt(seed, 30), max_tokens=60), point)
        workers.prefill.call.cancel()
        workers.decode.call.cancel()
        await workers.all_pages_back()


async def test_aborts_at_random_moments_under_load(folder: Path, oracle: Oracle) -> None:
    rng = random.Random(5)
    async with pair(folder, decode={"num_pages": 64}) as workers:
        slow_down(workers.prefill.host, seconds=0.002)

        async def one(seed: int) -> None:
            expected = oracle(prompt(seed, 40), 12)
            job = work(prompt(seed, 40), max_tokens=12)
            try:
                async with asyncio.timeout(rng.uniform(0, 0.25)):
                    assert await workers.generate(job) == expected
            except TimeoutError:
                await workers.prefill.abort(job.request_id)
                await workers.decode.abort(job.request_id)

        await asyncio.gather(*(one(seed) for seed in range(40)))
        await workers.all_pages_back()
        assert await workers.generate(work(prompt(3, 40), max_tokens=6)) == oracle(prompt(3, 40), 6)
        assert not workers.prefill.deaths
        assert not workers.decode.deaths


async def test_aborts_at_random_moments_in_mixed_mode_with_preemption(
    folder: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    rng = random.Random(6)
    async with worker(folder, WorkerRole.DECODE, None, num_pages=40) as link:

        async def one(seed: int) -> None:
            job = work(prompt(seed, 40), max_tokens=30)
            await link.submit(job)
            try:
                async with asyncio.timeout(rng.uniform(0.1, 1.0)):
                    await link.next(job.request_id, "started")
                    ids, _ = await link.tokens(job.request_id)
                    assert ids == expected[seed]
            except TimeoutError:
                await link.abort(job.request_id)

        expected = [oracle(prompt(seed, 40), 30) for seed in range(16)]
        await asyncio.gather(*(one(seed) for seed in range(16)))
        await link.all_pages_back()
        assert not link.deaths
