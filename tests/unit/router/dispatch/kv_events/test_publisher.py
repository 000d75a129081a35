"""Batches over real sockets, read as vLLM's subscribers read them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import pytest_asyncio
import zmq
import zmq.asyncio

from common.block_hash import block_hashes
from common.kv_groups import RequestPages
from router.dispatch.kv_events.blocks import BlocksRemoved, BlocksStored
from router.dispatch.kv_events.feed import KVEventFeed
from router.dispatch.kv_events.publisher import Publisher, encoded
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import worker_pb2

TOPIC = "kv@host@model"


def test_events_have_vllms_fields_in_vllms_order() -> None:
    """vllm/distributed/kv_events.py: structs as arrays, the name first, defaults at the end left out."""
    batch = encoded([BlocksStored(2**63, [5, 6], [1, 2, 3, 4]), BlocksRemoved([7])], 2, 1.5)
    assert msgpack.unpackb(batch) == [
        1.5,
        [["BlockStored", [5, 6], 2**63, [1, 2, 3, 4], 2, None, "GPU", None], ["BlockRemoved", [7], "GPU"]],
        0,
    ]
    batch = encoded([BlocksStored(None, [5, 6], [1, 2, 3, 4], {6: ("sql", -9)}, "sql")], 2, 1.5)
    fields = ["BlockStored", [5, 6], None, [1, 2, 3, 4], 2, None, "GPU", "sql", [None, ["sql", -9]]]
    assert msgpack.unpackb(batch)[1] == [fields]


class Subscriber:
    def __init__(self, folder: Path) -> None:
        self.context = zmq.asyncio.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.connect(f"ipc://{folder}/events")
        self.events.subscribe(b"kv@")
        self.replay = self.context.socket(zmq.DEALER)
        self.replay.connect(f"ipc://{folder}/replay")

    async def ask(self, first: int) -> list[tuple[int, list[Any]]]:
        """Numbers and events of the batches from `first` on."""
        await self.replay.send_multipart([b"", first.to_bytes(8, "big")])
        batches = []
        while True:
            _, number, batch = await asyncio.wait_for(self.replay.recv_multipart(), 10)
            if (found := int.from_bytes(number, "big", signed=True)) < 0:
                return batches
            batches.append((found, msgpack.unpackb(batch)[1]))


@pytest_asyncio.fixture
async def subscriber(tmp_path: Path) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber(tmp_path)
    yield subscriber
    subscriber.context.destroy(linger=0)


def publisher(folder: Path) -> Publisher:
    return Publisher(f"ipc://{folder}/events", f"ipc://{folder}/replay", TOPIC)


async def test_subscribers_get_numbered_batches_and_those_that_they_missed(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    published = publisher(tmp_path)
    await published.open()
    try:
        assert await subscriber.ask(0) == [(0, [["AllBlocksCleared"]])]
        removed = ["BlockRemoved", [7], "GPU"]
        async with asyncio.timeout(10):
            while not await subscriber.events.poll(50):  # until the subscription has arrived
                await published.send([BlocksRemoved([7])], 16)
        topic, number, batch = await subscriber.events.recv_multipart()
        assert topic == TOPIC.encode()
        last = int.from_bytes(number, "big")
        assert msgpack.unpackb(batch)[1] == [removed]
        assert (await subscriber.ask(last))[0] == (last, [removed])
    finally:
        await published.close()


BATCHES = 10_000


def block_of(number: int) -> BlocksRemoved:
    return BlocksRemoved([number] * 100)


async def test_a_subscriber_that_reads_slowly_gets_every_batch_and_the_end(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    published, other = publisher(tmp_path), Subscriber(tmp_path)
    await published.open()
    try:
        for number in range(BATCHES):
            await published.send([block_of(number)], 16)
        asking = asyncio.create_task(subscriber.ask(1))
        assert [number for number, _ in await other.ask(BATCHES - 3)] == list(range(BATCHES - 3, BATCHES + 1))
        await asyncio.sleep(0.5)
        batches = await asking
        assert [number for number, _ in batches] == list(range(1, BATCHES + 1))
        assert [events[0][1][0] for _, events in batches] == list(range(BATCHES))
    finally:
        other.context.destroy(linger=0)
        await published.close()


async def test_a_subscriber_that_asks_and_leaves_ends_its_replay_and_no_others(
    tmp_path: Path, subscriber: Subscriber
) -> None:
    published, gone = publisher(tmp_path), Subscriber(tmp_path)
    await published.open()
    try:
        for number in range(BATCHES):
            await published.send([block_of(number)], 16)
        await gone.replay.send_multipart([b"", (1).to_bytes(8, "big")])
        await gone.replay.poll()
        gone.context.destroy(linger=0)
        assert len(await subscriber.ask(1)) == BATCHES
        async with asyncio.timeout(10):
            while not all(task.done() for task in published._replays.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        await published.close()


async def test_an_endpoint_that_is_taken_is_an_error(tmp_path: Path) -> None:
    nowhere = Publisher(f"ipc://{tmp_path}/no/such/folder", None, TOPIC)
    with pytest.raises(OSError):
        await nowhere.open()


async def test_the_feed_follows_workers_and_requests(tmp_path: Path, subscriber: Subscriber) -> None:
    load = WorkerLoad(RequestPages(2))
    prompt, output = [1, 2, 3], [4, 5, 6]
    outcomes: list[str] = []
    hashes = block_hashes(prompt + output, 2)
    load.cached.stored(hashes[:1])
    session = SimpleNamespace(load=load, on_cache=None)
    member: Any = SimpleNamespace(handle=SimpleNamespace(worker_id="decode-0"), session=session)
    async with KVEventFeed(publisher(tmp_path)) as feed:
        feed.worker_changed(member, True)
        session.on_cache(True, hashes[1:])
        marks = Waterfall(arrival=0.0, observer=None)  # type: ignore[arg-type]
        ended = feed.before(lambda _sequence, outcome, _at: outcomes.append(outcome))
        ended(
            SequenceState(worker_pb2.Work(prompt=prompt), marks, output=output),
            "stop",
            1.0,
        )
        assert outcomes == ["stop"]
        stored = ["BlockStored", hashes, None, prompt + output, 2, None, "GPU", None]
        assert await until(subscriber, 1) == [[stored]]
        feed.worker_changed(member, False)
        (((name, gone, _),),) = await until(subscriber, 2)
        assert (name, set(gone)) == ("BlockRemoved", set(hashes))


async def until(subscriber: Subscriber, first: int) -> list[Any]:
    """The batches from `first` on, once there are some."""
    async with asyncio.timeout(10):
        while not (batches := await subscriber.ask(first)):
            await subscriber.replay.poll(10)
    return [events for _, events in batches]
