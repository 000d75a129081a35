"""Workers with KV tiers and a pool of a quarter of what they serve: the tokens are those of transformers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, pair, work, worker
from worker.config import TierConfig, WorkerRole
from worker.kv_tiers import TierError

PAGE_BYTES = 1024
POOL: dict[str, Any] = {"num_pages": 32, "max_model_len": 100}
TIERS = TierConfig(host_bytes=400 * PAGE_BYTES)
PROMPTS = [[(seed * 31 + i * i * 7) % 97 for i in range(60)] for seed in range(8)]


def with_disk(folder: Path, host_pages: int = 40) -> TierConfig:
    return TierConfig(
        host_bytes=host_pages * PAGE_BYTES, disk_dir=folder, second_tier_bytes=2000 * PAGE_BYTES
    )


async def run(link: Link, prompt: list[int]) -> tuple[list[int], dict[str, int]]:
    """Tokens of the answer, and the prompt tokens that came from tiers."""
    job = work(prompt, max_tokens=8)
    await link.submit(job)
    started = await link.next(job.request_id, "started")
    return (await link.tokens(job.request_id))[0], dict(started.promoted)


async def copied(link: Link, tier: str, pages: int) -> None:
    """Return when so many pages have gone down to a tier."""
    async with asyncio.timeout(20):
        while (await stats(link))[tier].demoted < pages:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def stats(link: Link) -> dict[str, worker_pb2.KVTier]:
    found = await link.stub.GetStats(worker_pb2.GetStatsRequest())
    return {tier.name: tier for tier in found.tiers.tiers}


def flip_bits(folder: Path) -> None:
    """One in every file."""
    for number, path in enumerate(folder.rglob("*.kv")):
        content = bytearray(path.read_bytes())
        content[(number * 37) % len(content)] ^= 1 << number % 8
        path.write_bytes(content)


async def two_rounds(link: Link, oracle: Oracle) -> dict[str, int]:
    """Every prompt twice, the second time with more behind it; tokens that came from tiers."""
    promoted: dict[str, int] = {}
    for suffix in ([], [5, 6, 7]):
        for number, prompt in enumerate(PROMPTS, 1):
            tokens, sources = await run(link, prompt + suffix)
            assert tokens == oracle(prompt + suffix, 8)
            for tier, count in sources.items():
                promoted[tier] = promoted.get(tier, 0) + count
            if not suffix and "disk" in await stats(link):  # all of the pool is copied then
                await copied(link, "host", number * 15)
    await link.all_pages_back()
    return promoted


async def test_evicted_prefixes_come_up_from_host_memory(folder: Path, oracle: Oracle) -> None:
    async with worker(folder, WorkerRole.DECODE, None, tiers=TIERS, **POOL) as link:
        assert (await two_rounds(link, oracle))["host"] > 0


async def test_prefixes_survive_a_restart_on_disk(folder: Path, oracle: Oracle, tmp_path: Path) -> None:
    tiers = with_disk(tmp_path)
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        await two_rounds(link, oracle)
        await copied(link, "disk", 8 * 15)
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        for prompt in PROMPTS:
            tokens, sources = await run(link, [*prompt, 5, 6, 7])
            assert tokens == oracle([*prompt, 5, 6, 7], 8)
            assert sources["disk"] == 60


async def test_flipped_bits_in_files_never_become_tokens(
    folder: Path, oracle: Oracle, tmp_path: Path
) -> None:
    tiers = with_disk(tmp_path)
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        await two_rounds(link, oracle)
        await copied(link, "disk", 8 * 15)
    flip_bits(tmp_path)
    async with worker(folder, WorkerRole.DECODE, None, tiers=tiers, **POOL) as link:
        for prompt in PROMPTS:
            tokens, sources = await run(link, [*prompt, 5, 6, 7])
            assert tokens == oracle([*prompt, 5, 6, 7], 8)
            assert not sources
        found = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert found.tiers.faults["digest"] + found.tiers.faults["load"] >= len(PROMPTS)


async def test_cleared_places_are_empty_and_the_others_serve(
    folder: Path, oracle: Oracle, tmp_path: Path
) -> None:
    async with worker(folder, WorkerRole.DECODE, None, tiers=with_disk(tmp_path), **POOL) as link:

        async def clear(*places: str) -> dict[str, worker_pb2.CachePlace]:
            report = await link.stub.ManageCache(worker_pb2.ManageCacheRequest(clear=places))
            return {place.name: place for place in report.places}

        tokens, _ = await run(link, PROMPTS[0])
        await copied(link, "disk", 16)
        found = await clear("pool")
        assert (found["pool"].cleared, found["pool"].pages, found["host"].pages) == (16, 0, 16)
        assert await run(link, PROMPTS[0]) == (tokens, {"host": 56})
        await clear("host", "pool")
        assert await run(link, PROMPTS[0]) == (tokens, {"disk": 56})
        found = await clear("pool", "host", "disk")
        assert [place.pages for place in found.values()] == [0, 0, 0]
        assert (found["host"].hit_tokens, found["disk"].hit_tokens) == (56, 56)
        assert await run(link, PROMPTS[0]) == (tokens, {})
        assert tokens == oracle(PROMPTS[0], 8)
        await link.all_pages_back()


async def test_disaggregated_workers_use_their_own_tiers(folder: Path, oracle: Oracle) -> None:
    settings = {**POOL, "tiers": TIERS}
    async with pair(folder, prefill=settings, decode=settings) as workers:
        for suffix in ([], [5, 6, 7]):
            for prompt in PROMPTS:
                job = work(prompt + suffix, max_tokens=8)
                assert await workers.generate(job) == oracle(prompt + suffix, 8)
        await workers.all_pages_back()
        assert (await stats(workers.prefill))["host"].promoted > 0


async def test_two_workers_cannot_share_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kv.tiers.block_files._LOCK_PATIENCE_S", 0.0)
    async with worker(folder, WorkerRole.DECODE, None, tiers=with_disk(tmp_path), **POOL):
        with pytest.raises(TierError, match="--disk-kv-dir"):
            async with worker(folder, WorkerRole.DECODE, None, tiers=with_disk(tmp_path), **POOL):
                pass


@pytest.mark.parametrize(
    ("host_bytes", "problem"), [(PAGE_BYTES, "no room for two"), (1 << 60, "are available")]
)
async def test_a_host_tier_of_impossible_size_is_refused(folder: Path, host_bytes: int, problem: str) -> None:
    with pytest.raises(TierError, match=rf"--host-kv-gb .*{problem}"):
        async with worker(
            folder, WorkerRole.DECODE, None, tiers=replace(TIERS, host_bytes=host_bytes), **POOL
        ):
            pass
