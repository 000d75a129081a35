"""Workers that share an object store below host memory: the tokens are those of transformers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("boto3", reason="the extra object-kv")
pytest.importorskip("moto.server", reason="a package for tests")

from engine.kv.tiers import block_objects
from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, worker
from tests.integration.workers.caching.test_tiers import PAGE_BYTES, POOL, PROMPTS, copied, run
from tests.object_store import Store, store
from worker.config import TierConfig, WorkerRole
from worker.kv_tiers import TierError

TURN = [5, 6, 7]
SOME = PROMPTS[:4]


@pytest.fixture(autouse=True)
def prompt_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_objects, "_LOOK_S", 0.05)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture
def bucket() -> Iterator[Store]:
    with store() as opened:
        yield opened


def sharing(folder: Path, bucket: Store, name: str = "decode-0", **settings: Any) -> Any:
    tiers = TierConfig(host_bytes=80 * PAGE_BYTES, object_url=bucket.url, second_tier_bytes=2000 * PAGE_BYTES)
    return worker(folder, WorkerRole.DECODE, None, name=name, tiers=tiers, **POOL, **settings)


async def knows(link: Link, pages: int) -> None:
    """Return when the worker has found this number of objects."""
    async with asyncio.timeout(20):
        while (await tiers_of(link)).tiers[1].pages < pages:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def tiers_of(link: Link) -> worker_pb2.KVTiers:
    return (await link.stub.GetStats(worker_pb2.GetStatsRequest())).tiers


async def fill(link: Link, oracle: Oracle) -> None:
    for number, prompt in enumerate(SOME, 1):
        assert (await run(link, prompt))[0] == oracle(prompt, 8)
        await copied(link, "object", number * 15)


async def test_what_one_worker_has_computed_another_one_and_the_next_start_use(
    folder: Path, oracle: Oracle, bucket: Store
) -> None:
    async with sharing(folder, bucket) as first:
        async with sharing(folder, bucket, "decode-1") as second:
            await fill(first, oracle)
            await knows(second, len(bucket.names()))
            tokens, sources = await run(second, SOME[0] + TURN)
            assert (tokens, sources) == (oracle(SOME[0] + TURN, 8), {"object": 60})
            await second.all_pages_back()
        await first.all_pages_back()
    async with sharing(folder, bucket) as again:
        await knows(again, 60)
        tokens, sources = await run(again, SOME[1] + TURN)
        assert (tokens, sources) == (oracle(SOME[1] + TURN, 8), {"object": 60})


async def test_wrong_bytes_never_become_tokens(folder: Path, oracle: Oracle, bucket: Store) -> None:
    async with sharing(folder, bucket) as link:
        await fill(link, oracle)
    names = bucket.names()
    for number, name in enumerate(names):
        content = bytearray(bucket.content(name))
        if number % 3:
            content[(number * 37) % len(content)] ^= 1 << number % 8
        bucket.put(name, bytes(content if number % 3 else content[:-1]))
    async with sharing(folder, bucket, "decode-1") as link:
        await knows(link, len([number for number in range(len(names)) if number % 3]))
        for prompt in SOME:
            tokens, sources = await run(link, prompt + TURN)
            assert tokens == oracle(prompt + TURN, 8)
            assert not sources
        found = await tiers_of(link)
        assert found.faults["digest"] + found.faults["load"] > 0
        await link.all_pages_back()


async def test_requests_are_answered_while_the_store_is_down(
    folder: Path, oracle: Oracle, bucket: Store
) -> None:
    async with sharing(folder, bucket) as link:
        await fill(link, oracle)
    async with sharing(folder, bucket, "decode-1") as link:
        await knows(link, 60)
        bucket.stop()
        began = time.monotonic()
        for prompt in SOME:
            tokens, sources = await run(link, prompt + TURN)
            assert tokens == oracle(prompt + TURN, 8)
            assert not sources
        assert time.monotonic() - began < 30
        assert (await tiers_of(link)).faults["late"] > 0
        await link.all_pages_back()


async def test_a_bucket_that_is_not_there_is_refused(folder: Path, bucket: Store) -> None:
    bucket.url = bucket.url.replace("s3://", "s3://no-")
    with pytest.raises(TierError, match="--object-kv-url"):
        async with sharing(folder, bucket):
            pass
