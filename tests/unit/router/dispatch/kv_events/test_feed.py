"""What a gateway learns of caches: pool, tiers, pulls from other workers, and workers that leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from common.block_hash import block_hashes
from router.dispatch.kv_events.blocks import BlockEvent, BlocksStored
from router.dispatch.kv_events.feed import KVEventFeed
from router.dispatch.kv_events.publisher import Publisher
from router.dispatch.workers.member import Member
from router.placement.account.cached_prefixes import CachedPrefixes
from rpc.baton.v1 import worker_pb2

PAGE = 2
PROMPT = [1, 2, 3, 4, 5, 6]
BLOCKS = block_hashes(PROMPT, PAGE)


class Gateway:
    """The blocks that the events leave."""

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.failures = 0
        """How often nothing can be sent."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def send(self, events: Sequence[BlockEvent], page_size: int) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("the socket is broken")
        for event in events:
            if isinstance(event, BlocksStored):
                self.blocks += event.blocks
            else:
                self.blocks = [block for block in self.blocks if block not in event.blocks]


class Worker:
    """Its member and its session in a router."""

    def __init__(self, name: str) -> None:
        cached = CachedPrefixes(PAGE)
        self.session: Any = SimpleNamespace(load=SimpleNamespace(page_size=PAGE, cached=cached))
        self.member = cast(
            Member, SimpleNamespace(handle=SimpleNamespace(worker_id=name), session=self.session)
        )

    def reports(self, blocks: Sequence[int], *, stored: bool = True, below: bool = False) -> None:
        """As a session does with what a worker reports."""
        change = worker_pb2.CacheChange(stored=stored, blocks=blocks, below=below)
        self.session.load.cached.changed(change)
        self.session.on_cache(change.stored, change.blocks)


async def followed(*workers: Worker) -> tuple[KVEventFeed, Gateway]:
    gateway = Gateway()
    feed = KVEventFeed(cast(Publisher, gateway))
    for worker in workers:
        feed.worker_changed(worker.member, True)
    end_of_request(feed)
    return feed, gateway


def end_of_request(feed: KVEventFeed) -> None:
    ended = SimpleNamespace(prompt=PROMPT, output=[], prototype=worker_pb2.Work(prompt=PROMPT))
    feed.before(lambda *_: None)(cast(Any, ended), "stop", 0.0)


async def published(feed: KVEventFeed, gateway: Gateway) -> list[int]:
    async with feed:
        await asyncio.sleep(0.12)
    return gateway.blocks


async def test_a_block_stays_while_it_is_in_the_pool_or_on_a_tier() -> None:
    worker = Worker("decode-0")
    feed, gateway = await followed(worker)
    worker.reports(BLOCKS)
    worker.reports(BLOCKS[1:], below=True)
    assert await published(feed, gateway) == list(BLOCKS)
    worker.reports(BLOCKS[2:], stored=False)
    assert await published(feed, gateway) == list(BLOCKS[:2])


async def test_a_block_that_was_pulled_stays_until_both_workers_have_lost_it() -> None:
    one, other = Worker("decode-0"), Worker("decode-1")
    feed, gateway = await followed(one, other)
    one.reports(BLOCKS)
    other.reports(BLOCKS)
    one.reports(BLOCKS, stored=False)
    assert await published(feed, gateway) == list(BLOCKS)
    other.reports(BLOCKS, stored=False)
    assert await published(feed, gateway) == []


async def test_blocks_of_a_worker_that_leaves_are_removed_and_those_that_others_have_stay() -> None:
    one, other = Worker("decode-0"), Worker("decode-1")
    feed, gateway = await followed(one, other)
    one.reports(BLOCKS)
    other.reports(BLOCKS[:1])
    feed.worker_changed(one.member, False)
    assert await published(feed, gateway) == list(BLOCKS[:1])


async def test_blocks_of_a_worker_that_connects_again_are_published_with_the_next_request_that_has_them() -> (
    None
):
    worker = Worker("decode-0")
    feed, gateway = await followed(worker)
    worker.reports(BLOCKS)
    again = Worker("decode-0")
    again.session.load.cached.stored(BLOCKS[:2])
    feed.worker_changed(again.member, True)
    assert await published(feed, gateway) == []
    end_of_request(feed)
    assert await published(feed, gateway) == list(BLOCKS[:2])


async def test_events_after_an_error_are_published(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker("decode-0")
    feed, gateway = await followed(worker)
    gateway.failures = 1
    worker.reports(BLOCKS[:1])
    async with feed:
        await asyncio.sleep(0.12)
        assert not gateway.failures
        worker.reports(BLOCKS[1:])
        await asyncio.sleep(0.12)
    assert gateway.blocks == BLOCKS[1:]
    assert "KV events are not published: the socket is broken" in caplog.text
