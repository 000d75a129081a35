"""Handoffs between workers of different numbers of ranks, in one process, byte for byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pytest

from common.kv_groups import full_group
from kv_transfer import KVLayout, PoolMemory
from kv_transfer.errors import PeerUnreachable
from kv_transfer.integrity.digest import host_digester
from kv_transfer.layout import SUM64
from kv_transfer.planner import coalesce, state_copy
from kv_transfer.sharded import KINDS, RankSocket, ShardedDigester, ShardedTransport, serve_rank
from kv_transfer.sharded.peers import pack_ranks, ranks_of
from kv_transfer.sharded.writer import RankWriter
from kv_transfer.state_layout import StateLayout
from kv_transfer.ticket import Peer
from kv_transfer.transports import LoopbackNetwork, LoopbackTransport
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed

NUM_PAGES = 6


STATE = StateLayout(4, ((1, (44, 8)),))
"""A page of a rank has 192 bytes or more, and its part of the state 208 or fewer."""


def layout(kv_heads: int, size: int = 1, rank: int = 0) -> KVLayout:
    return KVLayout(
        "m", "float32", full_group(2), kv_heads, 3, 4, tp_size=size, tp_rank=rank, digest=SUM64, state=STATE
    )


@dataclass
class Worker:
    transport: ShardedTransport
    digester: ShardedDigester
    peer: Peer
    pools: list[np.ndarray]
    """Pool of each rank: [page, kind, head, bytes]."""
    network: LoopbackNetwork
    events: list[TransportEvent]

    def poll_until(self, kind: type[TransportEvent]) -> TransportEvent:
        for _ in range(2000):
            self.events += self.transport.poll()
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            threading.Event().wait(0.001)
        raise TimeoutError(kind.__name__)

    def heads(self, page: int, kv_heads: int) -> np.ndarray:
        """[kind, head, bytes] of all heads of the model, each from the lowest rank that holds it."""
        whole = np.zeros((4, kv_heads, 48), dtype=np.uint8)
        for rank, pool in reversed(list(enumerate(self.pools))):
            part = layout(kv_heads, len(self.pools), rank)
            whole[:, part.first_head : part.first_head + part.heads_per_shard] = pool[page]
        return whole

    def states(self, page: int, kv_heads: int) -> list[np.ndarray]:
        """Each rank's part of a state that begins at that page."""
        ranks = enumerate(self.pools)
        return [
            pool.reshape(-1)[page * 4 * 48 * part.heads_per_shard :][: part.state_bytes]
            for part, pool in ((layout(kv_heads, len(self.pools), rank), pool) for rank, pool in ranks)
        ]


def make_worker(name: str, kv_heads: int, size: int, network: LoopbackNetwork, stack: ExitStack) -> Worker:
    pools, ranks = [], []
    for rank in range(size):
        part = layout(kv_heads, size, rank)
        pool = np.zeros((NUM_PAGES, 4, part.heads_per_shard, 48), dtype=np.uint8)
        memory = PoolMemory(pool.ctypes.data, part.page_bytes, NUM_PAGES, view=memoryview(pool.reshape(-1)))
        transport = LoopbackTransport(f"{name}.{rank}", memory, network)
        pools.append(pool)
        ranks.append(
            (
                Peer.of(transport.name, 1, transport.metadata, memory, part),
                RankWriter(transport, part),
                host_digester(memory, part),
            )
        )
    links = []
    for rank in ranks[1:]:
        here, there = socket.socketpair()
        thread = threading.Thread(target=serve_rank, args=(RankSocket(there, KINDS), *rank), daemon=True)
        thread.start()
        stack.callback(thread.join, 5.0)
        links.append(RankSocket(here, KINDS))
    whole = layout(kv_heads)
    pool, writer, digester = ranks[0]
    transport = ShardedTransport(name, writer, pool, links, whole)
    stack.callback(transport.close)
    memory = PoolMemory(0, whole.page_bytes, NUM_PAGES)
    peer = Peer.of(name, 1, transport.metadata, memory, whole)
    return Worker(
        transport, ShardedDigester(digester, links, layout(kv_heads, size)), peer, pools, network, []
    )


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pair(stack: ExitStack, kv_heads: int, source: int, target: int) -> tuple[Worker, Worker]:
    network = LoopbackNetwork()
    sender = make_worker("p", kv_heads, source, network, stack)
    receiver = make_worker("d", kv_heads, target, network, stack)
    fill(sender, kv_heads)
    sender.transport.connect(receiver.peer)
    receiver.transport.connect(sender.peer)
    return sender, receiver


def fill(worker: Worker, kv_heads: int) -> None:
    """Random numbers, the same on ranks that hold the same head."""
    whole = np.random.default_rng(3).integers(0, 256, (NUM_PAGES, 4, kv_heads, 48), dtype=np.uint8)
    for rank, pool in enumerate(worker.pools):
        part = layout(kv_heads, len(worker.pools), rank)
        pool[:] = whole[:, :, part.first_head : part.first_head + part.heads_per_shard]


def copies(local: Sequence[int], remote: Sequence[int], kv_heads: int) -> list:
    return coalesce(local, remote, layout(kv_heads).page_bytes)


@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 2), (4, 4)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_every_head_arrives_and_both_sides_digest_the_same(
    stack: ExitStack, source: int, target: int, kv_heads: int
) -> None:
    sender, receiver = pair(stack, kv_heads, source, target)
    local, remote = [0, 1, 2, 5], [3, 4, 0, 1]
    number = sender.transport.write(receiver.peer, copies(local, remote, kv_heads), b"here")
    assert sender.poll_until(WriteDone) == WriteDone(number)
    assert receiver.poll_until(ReceivedMessage) == ReceivedMessage(b"here")
    for mine, theirs in zip(local, remote, strict=True):
        expected = sender.heads(mine, kv_heads)
        for rank, pool in enumerate(receiver.pools):
            part = layout(kv_heads, target, rank)
            assert np.array_equal(
                pool[theirs], expected[:, part.first_head : part.first_head + part.heads_per_shard]
            )
    assert not any(pool[[2, 5]].any() for pool in receiver.pools)
    for tail_tokens in (4, 3):
        assert sender.digester.digest(local, tail_tokens) == receiver.digester.digest(remote, tail_tokens)


@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 2), (4, 4)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_state_arrives_with_pages_and_both_sides_digest_the_same(
    stack: ExitStack, source: int, target: int, kv_heads: int
) -> None:
    sender, receiver = pair(stack, kv_heads, source, target)
    whole = np.random.default_rng(5).integers(1, 256, (2, 4, 44), dtype=np.uint8)
    for part, heads in zip(sender.states(2, kv_heads), np.split(np.arange(4), source), strict=True):
        part[:] = np.concatenate([whole[0, heads].reshape(-1), whole[1, heads, :8].reshape(-1)])
    pages = coalesce([0], [3], layout(kv_heads).page_bytes)
    sender.transport.write(receiver.peer, [*pages, state_copy(layout(kv_heads), 2, 0)], b"here")
    sender.poll_until(WriteDone)
    for part, heads in zip(receiver.states(0, kv_heads), np.split(np.arange(4), target), strict=True):
        expected = np.concatenate([whole[0, heads].reshape(-1), whole[1, heads, :8].reshape(-1)])
        np.testing.assert_array_equal(part, expected)
    digests = sender.digester.digest_state(2)
    assert receiver.digester.digest_state(0) == digests
    assert receiver.digester.digest([3], 4) == sender.digester.digest([0], 4)
    for part in receiver.states(0, kv_heads):
        part[-1] ^= 1
        assert receiver.digester.digest_state(0) != digests
        part[-1] ^= 1


def test_one_damaged_bit_on_any_rank_changes_the_digest(stack: ExitStack) -> None:
    """With one head on four ranks, each holds a copy."""
    for kv_heads in (1, 4):
        worker = make_worker(f"w{kv_heads}", kv_heads, 4, LoopbackNetwork(), stack)
        fill(worker, kv_heads)
        (before,) = worker.digester.digest([2], 4)
        for pool in worker.pools:
            pool[2, 1, 0, 7] ^= 1
            assert worker.digester.digest([2], 4) != [before]
            pool[2, 1, 0, 7] ^= 1
        assert worker.digester.digest([2], 4) == [before]


def test_a_write_fails_as_a_whole_when_one_rank_of_the_peer_is_lost(stack: ExitStack) -> None:
    sender, receiver = pair(stack, 2, 2, 2)
    sender.network.members["d.1"].close()
    number = sender.transport.write(receiver.peer, copies([0], [0], 2), b"here")
    failed = sender.poll_until(WriteFailed)
    assert isinstance(failed, WriteFailed)
    assert failed.write == number
    assert not any(isinstance(event, ReceivedMessage) for event in receiver.transport.poll())
    with pytest.raises(PeerUnreachable, match="lost a rank"):
        sender.transport.connect(receiver.peer)


def test_a_peer_is_lost_when_all_of_its_ranks_are(stack: ExitStack) -> None:
    sender, receiver = pair(stack, 2, 1, 2)
    sender.network.members["d.0"].close()
    assert sender.transport.poll() == []
    sender.network.members["d.1"].close()
    lost = sender.poll_until(PeerLost)
    assert isinstance(lost, PeerLost)
    assert lost.name == receiver.peer.name


@pytest.mark.parametrize("count", [0, 1, 3])
def test_ranks_that_are_not_shards_of_a_worker_are_refused(stack: ExitStack, count: int) -> None:
    sender, receiver = pair(stack, 2, 1, 2)
    ranks = (ranks_of(receiver.peer) * 2)[:count]
    with pytest.raises(PeerUnreachable):
        sender.transport.connect(replace(receiver.peer, name="x", metadata=pack_ranks(ranks)))


def test_a_worker_without_ranks_is_refused(stack: ExitStack) -> None:
    sender, receiver = pair(stack, 2, 1, 1)
    with pytest.raises(PeerUnreachable):
        sender.transport.connect(replace(receiver.peer, name="x", metadata=b"loopback, and more of it"))
