"""What a client retains stays on a worker while other prompts come and go, until it is released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, work, worker
from worker.config import TierConfig, WorkerRole

PROMPT = [(93 + i * i * 7) % 97 for i in range(40)]
POOL: dict[str, Any] = {"num_pages": 40, "max_model_len": 60, "retained_kv_share": 0.4}


async def ask(
    link: Link, prompt: list[int], key: str = "", prefix: int | None = None
) -> tuple[list[int], int]:
    """The answer, and how much of the prompt was cached. `key` retains all of it, or `prefix` tokens."""
    job = work(prompt)
    job.tenant = "a"
    if key:
        job.retention.CopyFrom(worker_pb2.Retention(key=key, seconds=60.0 if prefix is None else 0.0))
    if prefix is not None:
        job.retention.prefixes.add(tokens=prefix, seconds=60.0)
    await link.submit(job)
    started = await link.next(job.request_id, "started")
    return (await link.tokens(job.request_id))[0], started.cached_tokens


async def fill(link: Link, first: int) -> None:
    for seed in range(first, first + 6):
        await ask(link, [(token + seed) % 97 for token in PROMPT])


@pytest.mark.parametrize("tiers", [None, TierConfig(host_bytes=30 * 1024)], ids=["pool", "tiers"])
async def test_retained_kv_outlives_others_until_it_is_released(
    folder: Path, oracle: Oracle, tiers: TierConfig | None
) -> None:
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        answer, _ = await ask(link, PROMPT, "chat")
        assert answer == oracle(PROMPT, 8)
        await fill(link, 1)
        assert (await link.stub.GetStats(worker_pb2.GetStatsRequest())).retained_blocks == 11
        again, cached = await ask(link, PROMPT)
        assert (again, cached) == (answer, 36)
        await link.send(release=worker_pb2.Release(tenant="b", key="chat"))
        await link.send(release=worker_pb2.Release(tenant="a", key="other"))
        await fill(link, 10)
        assert (await ask(link, PROMPT))[1] == 36
        await link.send(release=worker_pb2.Release(tenant="a", key="chat"))
        await fill(link, 20)
        assert (await ask(link, PROMPT))[1] == 0
        await link.all_pages_back()


@pytest.mark.parametrize("tiers", [None, TierConfig(host_bytes=30 * 1024)], ids=["pool", "tiers"])
async def test_of_a_prompt_with_a_breakpoint_the_pages_before_it_are_retained(
    folder: Path, oracle: Oracle, tiers: TierConfig | None
) -> None:
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        answer, _ = await ask(link, PROMPT, "chat", prefix=22)
        await fill(link, 1)
        assert (await link.stub.GetStats(worker_pb2.GetStatsRequest())).retained_blocks == 5
        assert await ask(link, PROMPT) == (answer, 20)
        assert answer == oracle(PROMPT, 8)
        await link.send(release=worker_pb2.Release(tenant="a", key="chat"))
        await fill(link, 10)
        assert (await ask(link, PROMPT))[1] == 0
        await link.all_pages_back()


async def test_a_request_gets_pages_that_others_retain(folder: Path, oracle: Oracle) -> None:
    async with worker(
        folder, WorkerRole.DECODE, None, **POOL | {"num_pages": 15, "retained_kv_share": 1.0}
    ) as link:
        await ask(link, PROMPT, "chat")
        other = [(token + 1) % 97 for token in PROMPT]
        assert (await ask(link, other))[0] == oracle(other, 8)
        await link.all_pages_back()


async def test_clearing_a_key_drops_what_only_its_sessions_retain(folder: Path, oracle: Oracle) -> None:
    tiers = TierConfig(host_bytes=30 * 1024)
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        await ask(link, PROMPT, "chat")
        branch = [*PROMPT[:20], *PROMPT[:20]]
        await ask(link, branch, "other")
        request = worker_pb2.ManageCacheRequest(clear=["pool", "host"], key="chat")
        report = await link.stub.ManageCache(request)
        # 47 tokens have KV, in pages of 4: 11 full pages, the first 5 of which the other key retains too.
        assert report.places[0].cleared == 6
        assert [(kept.key, kept.tokens) for kept in report.retained] == [("other", 44)]
        assert await ask(link, PROMPT) == (oracle(PROMPT, 8), 20)
        assert await ask(link, branch) == (oracle(branch, 8), 36)
        await link.all_pages_back()
