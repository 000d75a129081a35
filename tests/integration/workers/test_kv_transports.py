"""What every transport must do: one suite, each test against each transport."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kv_transfer import Drained, HandedOff, Peer, PoolMemory, Ready, ReceiveFailed, SendFailed
from kv_transfer.errors import PeerUnreachable, TransportMissing
from kv_transfer.planner import Copy
from kv_transfer.transports import LoopbackNetwork, LoopbackTransport, Transport
from kv_transfer.transports.base import PeerLost, ReceivedMessage, TransportEvent, WriteDone, WriteFailed
from tests.kv_support import LAYOUT, REQUEST, Pool, expect_handed_off, final_for, receiver_on, sender_on

Open = Callable[[PoolMemory], Transport]

NOT_NIXL = pytest.mark.parametrize("opened", ["loopback", "ucxx"], indirect=True)
"""UCX may abort the process when a peer inside it vanishes while NIXL writes to it. Over NIXL,
tests/faults/kv kills processes."""

_names = (f"worker-{n}" for n in itertools.count())


@pytest.fixture(params=["loopback", "nixl", "ucxx"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens transports under fresh names that can reach each other, and closes them in the end."""
    network = LoopbackNetwork()
    transports: list[Transport] = []

    def open_transport(memory: PoolMemory) -> Transport:
        name = next(_names)
        transport: Transport
        if request.param == "loopback":
            transport = LoopbackTransport(name, memory, network)
        elif request.param == "nixl":
            from kv_transfer.transports.nixl import NixlTransport

            transport = NixlTransport(name, memory)
        else:
            from kv_transfer.transports.ucxx import UcxxTransport

            transport = UcxxTransport(name, memory)
        transports.append(transport)
        return transport

    yield open_transport
    for transport in transports:
        transport.close()


class Side:
    """A pool, its transport, and what happened on it."""

    def __init__(self, opened: Open, num_pages: int = 64) -> None:
        self.pool = Pool(num_pages)
        self.transport = opened(self.pool.memory)
        memory = self.pool.memory
        self.peer = Peer(
            self.transport.name,
            0,
            self.transport.metadata,
            memory.address,
            memory.page_bytes,
            num_pages,
            0,
            LAYOUT.hash,
        )
        self.events: list[TransportEvent] = []

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def pump(*sides: Side, until: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Polls all sides until something holds; fails after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not until():
        assert time.monotonic() < deadline, [side.events[-5:] for side in sides]
        for side in sides:
            side.events += side.transport.poll()


@pytest.fixture
def pair(opened: Open) -> tuple[Side, Side]:
    here, there = Side(opened), Side(opened)
    here.transport.connect(there.peer)
    there.transport.connect(here.peer)
    return here, there


def page_copy(local: int, remote: int, count: int = 1) -> Copy:
    return Copy(local * LAYOUT.page_bytes, remote * LAYOUT.page_bytes, count * LAYOUT.page_bytes)


def test_a_write_lands_byte_for_byte_before_its_message(pair: tuple[Side, Side]) -> None:
    here, there = pair
    here.pool.fill(range(64))
    write = here.transport.write(there.peer, [page_copy(3, 40, 5)], b"five pages")
    while not there.of(ReceivedMessage):
        here.events += here.transport.poll()
        there.events += there.transport.poll()
    expect_handed_off(here.pool, range(3, 8), there.pool, range(40, 45))
    pump(here, there, until=lambda: here.of(WriteDone) == [WriteDone(write)])
    assert there.of(ReceivedMessage) == [ReceivedMessage(b"five pages")]


def test_a_write_touches_nothing_but_its_own_pages(pair: tuple[Side, Side]) -> None:
    here, there = pair
    here.pool.fill(range(64))
    there.pool.fill(range(64), seed=1)
    expected = there.pool.bytes.copy()
    targets = np.random.default_rng(0).permutation(64)[:20].tolist()
    for local, remote in enumerate(targets):
        expected[remote] = here.pool.bytes[local]
    copies = [page_copy(local, remote) for local, remote in enumerate(targets)]
    here.transport.write(there.peer, copies, b"done")
    pump(here, there, until=lambda: bool(there.of(ReceivedMessage) and here.of(WriteDone)))
    np.testing.assert_array_equal(there.pool.bytes, expected)


def test_many_concurrent_writes_all_complete_under_their_own_numbers(pair: tuple[Side, Side]) -> None:
    here, there = pair
    here.pool.fill(range(64))
    messages = {str(n).encode() for n in range(200)}
    writes = {
        here.transport.write(there.peer, [page_copy(n % 64, n % 64)], str(n).encode()) for n in range(200)
    }
    assert len(writes) == 200
    pump(here, there, until=lambda: len(here.of(WriteDone)) == len(there.of(ReceivedMessage)) == 200)
    assert {event.write for event in here.of(WriteDone)} == writes
    assert {event.data for event in there.of(ReceivedMessage)} == messages
    expect_handed_off(here.pool, range(64), there.pool, range(64))


@pytest.mark.parametrize("size", [1, 100, 10_000, 300_000])
def test_messages_arrive_whole_in_both_directions(pair: tuple[Side, Side], size: int) -> None:
    here, there = pair
    data = np.random.default_rng(size).bytes(size)
    here.transport.send(there.peer, data)
    there.transport.send(here.peer, data[::-1])
    pump(here, there, until=lambda: bool(here.of(ReceivedMessage) and there.of(ReceivedMessage)))
    assert there.of(ReceivedMessage) == [ReceivedMessage(data)]
    assert here.of(ReceivedMessage) == [ReceivedMessage(data[::-1])]


def test_connecting_again_changes_nothing(pair: tuple[Side, Side]) -> None:
    here, there = pair
    here.transport.connect(there.peer)
    here.transport.send(there.peer, b"still here")
    pump(here, there, until=lambda: there.of(ReceivedMessage) == [ReceivedMessage(b"still here")])


def test_a_peer_that_left_is_refused(opened: Open) -> None:
    here, there = Side(opened), Side(opened)
    there.transport.close()
    with pytest.raises(PeerUnreachable, match="worker-"):
        here.transport.connect(there.peer)


def test_a_peer_that_was_never_connected_cannot_be_written_to(opened: Open) -> None:
    here, there = Side(opened), Side(opened)
    there.transport.close()
    with pytest.raises(PeerUnreachable):
        here.transport.write(there.peer, [page_copy(0, 0)], b"")


def test_a_lost_peer_is_reported_to_writers_and_to_idle_workers(opened: Open) -> None:
    here, there, third = Side(opened), Side(opened), Side(opened)
    here.transport.connect(there.peer)
    third.transport.connect(there.peer)
    here.transport.write(there.peer, [page_copy(0, 0)], b"")
    pump(here, there, third, until=lambda: bool(here.of(WriteDone)))
    there.transport.close()
    pump(here, third, until=lambda: bool(here.of(PeerLost) and third.of(PeerLost)))
    assert [event.name for event in here.of(PeerLost)] == [there.peer.name]
    assert [event.name for event in third.of(PeerLost)] == [there.peer.name]
    with pytest.raises(PeerUnreachable):
        here.transport.write(there.peer, [page_copy(0, 0)], b"")


def test_one_peer_leaving_does_not_disturb_another(opened: Open) -> None:
    here, there, third = Side(opened), Side(opened), Side(opened)
    here.pool.fill(range(8))
    for peer in (there.peer, third.peer):
        here.transport.connect(peer)
    there.transport.close()
    here.transport.write(third.peer, [page_copy(0, 8, 8)], b"to the other")
    pump(
        here,
        third,
        until=lambda: bool(here.of(PeerLost) and here.of(WriteDone) and third.of(ReceivedMessage)),
    )
    expect_handed_off(here.pool, range(8), third.pool, range(8, 16))


@NOT_NIXL
def test_every_started_write_ends_even_if_the_peer_leaves_under_it(opened: Open) -> None:
    here, there = Side(opened), Side(opened)
    here.transport.connect(there.peer)
    writes = {here.transport.write(there.peer, [page_copy(0, 0, 64)], b"") for _ in range(20)}
    there.transport.close()
    pump(here, until=lambda: bool(here.of(PeerLost)))
    assert {event.write for event in here.events if isinstance(event, WriteDone | WriteFailed)} == writes


def test_a_pool_registered_again_under_another_name_is_written_through_that(opened: Open) -> None:
    here, there = Side(opened), Side(opened)
    here.pool.fill(range(8))
    here.transport.connect(there.peer)
    here.transport.write(there.peer, [page_copy(0, 0)], b"")
    pump(here, there, until=lambda: bool(here.of(WriteDone)))
    there.transport.close()
    there.transport = opened(there.pool.memory)
    again = replace(there.peer, name=there.transport.name, metadata=there.transport.metadata)
    here.transport.connect(again)
    here.transport.write(again, [page_copy(0, 8, 8)], b"again")
    pump(here, there, until=lambda: ReceivedMessage(b"again") in there.events and bool(here.of(PeerLost)))
    expect_handed_off(here.pool, range(8), there.pool, range(8, 16))


def test_writes_to_a_forgotten_peer_end_and_others_continue(opened: Open) -> None:
    here, there, third = Side(opened), Side(opened), Side(opened)
    for side in (there, third):
        here.transport.connect(side.peer)
        assert here.transport.is_local(side.peer)
    write = here.transport.write(there.peer, [page_copy(0, 0, 64)], b"")
    here.transport.forget(there.peer)
    other = here.transport.write(third.peer, [page_copy(0, 0)], b"")
    pump(here, third, until=lambda: len(here.of(WriteDone) + here.of(WriteFailed)) == 2)
    assert WriteDone(other) in here.events
    assert {event.write for event in here.of(WriteDone) + here.of(WriteFailed)} == {write, other}


# ------------------------------------------------------------------------------ whole handoffs


def test_a_handoff_in_chunks_arrives_intact(opened: Open) -> None:
    source, target = Pool(64), Pool(64)
    source.fill(range(64))
    sender, receiver = sender_on(opened(source.memory), source), receiver_on(opened(target.memory), target)
    local, remote = list(range(5, 35)), list(range(60, 30, -1))
    now = time.monotonic()
    sender.open(1, now, 10.0)
    ticket = receiver.reserve(1, sender.peer, remote, 0, 118, now, 10.0, request_digest=REQUEST)
    sender.attach(ticket, now)
    sent: list[Any] = []
    received: list[Any] = []
    for tokens in (0, 40, 80, 118):
        if tokens == 118:
            sender.finish(1, local, 118, final_for(118), now)
        else:
            sender.computed(1, local, tokens, now)
        sent += sender.poll(now)
        received += receiver.poll(now)
    while not (sent and received):
        assert time.monotonic() < now + 10
        sent += sender.poll(now)
        received += receiver.poll(now)
    assert [type(event) for event in sent] == [HandedOff]
    assert [type(event) for event in received] == [Ready]
    assert received[0].final == final_for(118)
    expect_handed_off(source, local, target, remote)
    assert not sender.unexpected
    assert not receiver.unexpected


def test_a_sender_that_ends_frees_the_receivers_pages_and_nothing_hangs(opened: Open) -> None:
    source, target = Pool(64), Pool(64)
    sender, receiver = sender_on(opened(source.memory), source), receiver_on(opened(target.memory), target)
    now = time.monotonic()
    sender.open(1, now, 10.0)
    ticket = receiver.reserve(1, sender.peer, range(8), 0, 32, now, 10.0, request_digest=REQUEST)
    sender.attach(ticket, now)
    sender.computed(1, range(8), 16, now)
    sender.close()
    received: list[Any] = []
    while len(received) < 2:
        assert time.monotonic() < now + 10
        received += receiver.poll(now)
    assert [type(event) for event in received] == [ReceiveFailed, Drained]


@NOT_NIXL
def test_a_receiver_that_leaves_fails_the_senders_handoff(opened: Open) -> None:
    source, target = Pool(64), Pool(64)
    sender, receiver = sender_on(opened(source.memory), source), receiver_on(opened(target.memory), target)
    now = time.monotonic()
    sender.open(1, now, 10.0)
    ticket = receiver.reserve(1, sender.peer, range(8), 0, 32, now, 10.0, request_digest=REQUEST)
    sender.attach(ticket, now)
    receiver.close()
    sender.computed(1, range(8), 16, now)
    sent: list[Any] = []
    while not sent:
        assert time.monotonic() < now + 10
        sent += sender.poll(now)
    assert [type(event) for event in sent] == [SendFailed]
    assert sender.num_live == 0


def test_ucxx_where_it_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_transfer.transports.ucxx import UcxxTransport

    for module in ("ucxx", "ucxx._lib"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TransportMissing, match="pip install"):
        UcxxTransport("worker", Pool(1).memory)
