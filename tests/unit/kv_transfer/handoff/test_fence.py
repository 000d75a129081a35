"""A peer that was declared dead: what its pages become, whether it is really dead or comes back."""

from __future__ import annotations

from typing import Any

import pytest

from kv_transfer import (
    Drained,
    HandedOff,
    KVEndpoint,
    KVPort,
    Ready,
    ReceiveFailed,
    Reopened,
    SendFailed,
    Ticket,
)
from kv_transfer.errors import PeerFenced, RightsRemain
from kv_transfer.handoff.messages import Drain, HandoffMessage, Revoke, encode
from tests.kv_network import InFlightMessage, Network, NetworkTransport
from tests.kv_support import (
    LAYOUT,
    REQUEST,
    Pool,
    expect_handed_off,
    final_for,
    receiver_on,
    sender_on,
)

PAGES = [3, 4]
NUM_TOKENS = 8
TIMEOUT_S = 10.0


class Cluster:
    """Two prefill workers and a decode worker, on hosts of their own."""

    def __init__(self, *, neighbours: frozenset[str] = frozenset()) -> None:
        self.network = Network()
        self.pool = Pool(32)
        self.sources = [Pool(16), Pool(16)]
        self.senders = [
            sender_on(NetworkTransport(f"p-{n}", pool, self.network), pool, epoch=n)
            for n, pool in enumerate(self.sources, start=1)
        ]
        self.neighbours = neighbours
        self.opened = 0
        self.receiver = receiver_on(self.open(), self.pool, epoch=9, reopen=self.open, revoke_interval_s=1.0)
        self.received: list[Any] = []

    def open(self) -> NetworkTransport:
        self.opened += 1
        return NetworkTransport(f"d~{self.opened}", self.pool, self.network, self.neighbours)

    def reserve(self, handoff_id: int, sender: int = 0, now: float = 0.0) -> Ticket:
        pages = [page + 4 * handoff_id for page in PAGES]
        return self.receiver.reserve(
            handoff_id,
            self.senders[sender].peer,
            pages,
            0,
            NUM_TOKENS,
            now,
            TIMEOUT_S,
            request_digest=REQUEST,
        )

    def begin(self, handoff_id: int, sender: int = 0) -> None:
        """As far as a write under way."""
        self.senders[sender].open(handoff_id, 0.0, TIMEOUT_S)
        self.senders[sender].attach(self.reserve(handoff_id, sender), 0.0)
        self.senders[sender].computed(handoff_id, PAGES, 4, 0.0)
        assert self.network.writes

    def poll(self, now: float = 0.0) -> list[Any]:
        self.received += (events := self.receiver.poll(now))
        return events

    def settle(self, now: float) -> list[Any]:
        """Everything in flight arrives; what the senders reported."""
        sent: list[Any] = []
        for _ in range(10):
            for write in list(self.network.writes):
                self.network.complete(write)
            for message in list(self.network.messages):
                self.network.deliver(message)
            for sender in self.senders:
                sent += sender.poll(now)
            self.poll(now)
        return sent


def test_a_lost_senders_pages_stay_in_quarantine_until_it_is_fenced() -> None:
    cluster = Cluster()
    cluster.begin(1)
    assert [type(event) for event in cluster.poll(11.0)] == [ReceiveFailed]
    for now in range(12, 100):
        assert cluster.poll(float(now)) == []
    cluster.receiver.fence(1, "its node is dead", 100.0)
    assert cluster.poll(100.0) == [Drained(1)]
    assert cluster.receiver.num_live == 0


def test_a_fence_closes_the_receivers_side_before_pages_are_free() -> None:
    cluster = Cluster()
    cluster.begin(1)
    before = cluster.receiver.peer
    cluster.receiver.fence(1, "its node is dead", 1.0)
    assert before.name in cluster.network.closed
    assert cluster.receiver.peer.name != before.name
    failed, drained = cluster.poll(1.0)
    assert "its node is dead" in failed.reason
    assert drained == Drained(1)
    assert not cluster.network.writes  # that could land: the network refuses, too, to land one


def test_a_fenced_sender_is_refused_forever() -> None:
    cluster = Cluster()
    cluster.begin(1)
    cluster.receiver.fence(1, "", 1.0)
    with pytest.raises(PeerFenced, match="p-1"):
        cluster.reserve(2, sender=0)
    message = encode(HandoffMessage(1, 1, 9, 0, Drain("late")))
    cluster.network.messages.append(InFlightMessage(cluster.receiver.peer.name, message))
    assert [type(event) for event in cluster.settle(1.0)] == [SendFailed]
    assert cluster.receiver.unexpected["fenced"] == 1
    cluster.receiver.fence(1, "again", 2.0)
    assert cluster.opened == 2


def test_handoffs_from_others_fail_by_a_fence_and_the_next_ones_succeed() -> None:
    cluster = Cluster()
    cluster.begin(1, sender=0)
    cluster.begin(2, sender=1)
    cluster.receiver.fence(1, "", 1.0)
    events = cluster.poll(1.0)
    assert {event.handoff_id for event in events if isinstance(event, Drained)} == {1, 2}
    assert {type(event) for event in cluster.settle(2.0)} == {SendFailed}
    sender = cluster.senders[1]
    cluster.sources[1].fill(PAGES)
    sender.open(3, 2.0, TIMEOUT_S)
    sender.attach(cluster.reserve(3, sender=1, now=2.0), 2.0)
    sender.finish(3, PAGES, NUM_TOKENS, final_for(NUM_TOKENS), 2.0)
    cluster.settle(2.0)
    assert isinstance(cluster.received[-1], Ready)


def test_a_fence_of_a_peer_without_reserved_pages_disturbs_no_other_handoff() -> None:
    cluster = Cluster()
    cluster.begin(1, sender=0)
    cluster.receiver.fence(2, "", 1.0)
    cluster.receiver.fence(77, "never met", 1.0)
    assert cluster.opened == 1
    assert cluster.poll(1.0) == []
    with pytest.raises(PeerFenced):
        cluster.reserve(2, sender=1)


def test_the_end_of_a_process_on_this_host_is_detected_by_the_kernel() -> None:
    """What it writes goes through memory, which closing a connection does not end."""
    cluster = Cluster(neighbours=frozenset({"p-1"}))
    cluster.begin(1, sender=0)
    cluster.receiver.fence(1, "its node is dead", 1.0)
    assert cluster.opened == 1
    assert cluster.poll(11.0)[0].handoff_id == 1
    assert cluster.poll(50.0) == []
    cluster.network.notice("p-1")
    assert cluster.poll(51.0) == [Drained(1)]


def test_a_fence_of_another_host_frees_no_page_of_a_local_sender_before_it_has_drained() -> None:
    cluster = Cluster(neighbours=frozenset({"p-2"}))
    cluster.begin(1, sender=0)
    cluster.begin(2, sender=1)
    cluster.receiver.fence(1, "", 1.0)
    assert {event.handoff_id for event in cluster.poll(1.0) if isinstance(event, Drained)} == {1}
    for now in (3.0, 5.0, 7.0):
        cluster.settle(now)
    assert cluster.received[-1] == Drained(2)
    assert cluster.receiver.num_live == 0


def test_a_receiver_that_cannot_reopen_its_transport_must_exit() -> None:
    network, source, target = Network(), Pool(4), Pool(4)
    sender = sender_on(NetworkTransport("p", source, network), source)
    receiver = receiver_on(NetworkTransport("d", target, network), target)
    receiver.reserve(1, sender.peer, [0], 0, 4, 0.0, TIMEOUT_S, request_digest=REQUEST)
    with pytest.raises(RightsRemain, match="p was declared dead"):
        receiver.fence(1, "its node is dead", 0.0)


def test_fencing_the_receiver_frees_the_senders_pages_and_ends_its_messages() -> None:
    cluster = Cluster()
    cluster.begin(1)
    sender = cluster.senders[0]
    ticket = cluster.reserve(2)
    sender.fence(9, "its node is dead", 1.0)
    (failed,) = sender.poll(1.0)
    assert "its node is dead" in failed.reason
    assert sender.num_live == 0
    sender.open(2, 1.0, TIMEOUT_S)
    sender.attach(ticket, 1.0)
    assert [type(event) for event in sender.poll(1.0)] == [SendFailed]
    revoke = HandoffMessage(3, 9, 1, 5, Revoke(cluster.receiver.peer, "come back"))
    cluster.network.messages = [InFlightMessage("p-1", encode(revoke))]
    cluster.network.deliver(cluster.network.messages[0])
    sender.poll(1.0)
    assert cluster.network.messages == []
    assert sender.unexpected["fenced"] == 1


def test_a_peer_that_does_not_answer_does_not_keep_the_endpoint_busy() -> None:
    cluster = Cluster()
    cluster.begin(1)
    sender = cluster.senders[0]
    assert cluster.receiver.is_busy(0.0)
    assert sender.is_busy(0.0)
    cluster.poll(11.0)
    assert cluster.receiver.is_busy(12.0)
    assert not cluster.receiver.is_busy(17.0)
    sender.abort(1, 11.0)
    assert sender.is_busy(12.0)
    sender.poll(17.0)
    assert not sender.is_busy(17.0)


class Crossed:
    """Two workers that hand off to each other, and a third that only sends."""

    def __init__(self) -> None:
        self.network = Network()
        self.pools = [Pool(16) for _ in range(3)]
        self.opened = [0, 0, 0]
        self.ports = [
            KVPort(self.open(n), self.pools[n].memory, LAYOUT, epoch=n + 1, reopen=lambda n=n: self.open(n))
            for n in range(3)
        ]
        self.ends = [KVEndpoint(port) for port in self.ports]

    def open(self, n: int) -> NetworkTransport:
        self.opened[n] += 1
        return NetworkTransport(f"w-{n}~{self.opened[n]}", self.pools[n], self.network)

    def begin(self, handoff_id: int, source: int, target: int, remote: list[int]) -> Ticket:
        """As far as a write under way."""
        self.ends[source].sender.open(handoff_id, 0.0, TIMEOUT_S)
        ticket = self.ends[target].receiver.reserve(
            handoff_id,
            self.ports[source].peer,
            remote,
            0,
            NUM_TOKENS,
            0.0,
            TIMEOUT_S,
            request_digest=REQUEST,
        )
        self.ends[source].sender.attach(ticket, 0.0)
        self.ends[source].sender.computed(handoff_id, PAGES, 4, 0.0)
        return ticket

    def settle(self, now: float) -> list[list[Any]]:
        seen: list[list[Any]] = [[], [], []]
        for _ in range(10):
            for write in list(self.network.writes):
                self.network.complete(write)
            for message in list(self.network.messages):
                self.network.deliver(message)
            for events, end in zip(seen, self.ends, strict=True):
                events += end.poll(now)
        return seen


def test_handoffs_in_both_directions_share_one_transport() -> None:
    crossed = Crossed()
    for n in (0, 1):
        crossed.pools[n].fill(PAGES, seed=n)
    crossed.begin(1, 0, 1, [8, 9])
    crossed.begin(2, 1, 0, [10, 11])
    for handoff_id, source in ((1, 0), (2, 1)):
        crossed.ends[source].sender.finish(handoff_id, PAGES, NUM_TOKENS, final_for(NUM_TOKENS), 1.0)
    seen = crossed.settle(1.0)
    assert [{type(event) for event in events} for events in seen[:2]] == [{HandedOff, Ready}] * 2
    expect_handed_off(crossed.pools[0], PAGES, crossed.pools[1], [8, 9])
    expect_handed_off(crossed.pools[1], PAGES, crossed.pools[0], [10, 11])
    assert all(not port.unexpected for port in crossed.ports)


def test_a_fence_that_reopens_the_transport_ends_handoffs_in_both_directions_safely() -> None:
    crossed = Crossed()
    crossed.begin(1, 2, 0, [8, 9])
    crossed.begin(2, 0, 1, [8, 9])
    crossed.begin(3, 1, 0, [10, 11])
    old = crossed.ports[0].peer
    crossed.ends[0].fence(3, "its node is dead", 1.0)
    events = crossed.ends[0].poll(1.0)
    (reopened,) = [event for event in events if isinstance(event, Reopened)]
    assert reopened.peer.name == crossed.ports[0].peer.name != old.name
    assert reopened.peer.epoch == old.epoch
    assert {event.handoff_id for event in events if isinstance(event, SendFailed)} == {2}
    assert {event.handoff_id for event in events if isinstance(event, Drained)} == {1, 3}
    seen = crossed.settle(2.0)
    assert {type(event) for event in seen[1]} == {ReceiveFailed, Drained, SendFailed}
    assert all(end.sender.num_live == end.receiver.num_live == 0 for end in crossed.ends[:2])


def test_a_ticket_for_a_transport_that_was_closed_is_neither_used_nor_answered() -> None:
    """The receiver frees its pages when it learns of the end of the old transport, and no sooner."""
    crossed = Crossed()
    crossed.begin(1, 2, 0, [8, 9])
    stale = crossed.ports[0].peer
    crossed.ends[0].fence(3, "its node is dead", 1.0)
    crossed.ends[0].poll(1.0)
    crossed.network.gone.discard(stale.name)  # the receiver has not noticed yet
    crossed.ends[0].sender.open(2, 1.0, TIMEOUT_S)
    ticket = crossed.ends[1].receiver.reserve(
        2, stale, [8, 9], 0, NUM_TOKENS, 1.0, TIMEOUT_S, request_digest=REQUEST
    )
    crossed.network.messages.clear()
    crossed.ends[0].sender.attach(ticket, 1.0)
    assert [type(event) for event in crossed.ends[0].poll(1.0)] == [SendFailed]
    assert not crossed.network.messages
    assert not crossed.network.writes
    assert crossed.ends[1].receiver.num_live == 1
    crossed.network.notice(stale.name)
    assert [type(event) for event in crossed.ends[1].poll(2.0)] == [ReceiveFailed, Drained]
