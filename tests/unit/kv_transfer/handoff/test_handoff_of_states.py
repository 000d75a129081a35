"""The recurrent state of a request is sent once, with the last pages, and is covered by digests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kv_transfer import HandedOff, Ready, ReceiveFailed, Ticket
from kv_transfer.errors import BadTicket, LayoutMismatch
from kv_transfer.state_layout import StateLayout
from tests.kv_support import LAYOUT, REQUEST, Pool, expect_handed_off, final_for
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, NUM_TOKENS, REMOTE, Pair

STATEFUL = replace(LAYOUT, state=StateLayout(2, ((1, (300, 100)),)))
OURS, THEIRS = [30, 31], [16, 17]


@pytest.fixture
def pair() -> Pair:
    return Pair(STATEFUL)


def reserve(pair: Pair, state: list[int]) -> Ticket:
    peer = pair.sender.peer
    return pair.receiver.reserve(
        1, peer, REMOTE, 0, NUM_TOKENS, 0.0, 10.0, request_digest=REQUEST, state=state
    )


def expect_state(pair: Pair) -> None:
    """All bytes of the state have arrived, and none behind it."""
    here, there = (
        pool.bytes[pages].reshape(-1) for pool, pages in ((pair.source, OURS), (pair.target, THEIRS))
    )
    assert np.array_equal(there[: STATEFUL.state_bytes], here[: STATEFUL.state_bytes])
    assert not there[STATEFUL.state_bytes :].any()


def test_the_state_is_written_with_the_last_pages_and_no_earlier(pair: Pair) -> None:
    pair.sender.open(1, 0.0, 10.0)
    pair.sender.attach(reserve(pair, THEIRS), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.settle()
    assert not pair.target.bytes[THEIRS].any()
    pair.source.fill(OURS, seed=9)  # the next chunk changes it
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 1.0, state=OURS)
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])
    expect_handed_off(pair.source, LOCAL, pair.target, REMOTE)
    expect_state(pair)
    assert pair.sent[0].bytes == len(LOCAL) * STATEFUL.page_bytes + STATEFUL.state_bytes


def test_a_state_is_sent_when_all_pages_were_sent_before(pair: Pair) -> None:
    num_tokens = len(LOCAL) * STATEFUL.page_size
    peer = pair.sender.peer
    ticket = pair.receiver.reserve(
        1, peer, REMOTE, 0, num_tokens, 0.0, 10.0, request_digest=REQUEST, state=THEIRS
    )
    pair.sender.open(1, 0.0, 10.0)
    pair.sender.attach(ticket, 0.0)
    pair.sender.computed(1, LOCAL, num_tokens, 0.0)
    pair.settle()
    pair.sender.finish(1, LOCAL, num_tokens, final_for(num_tokens), 1.0, state=OURS)
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])
    expect_state(pair)


def test_a_state_that_arrives_damaged_fails_the_handoff(pair: Pair) -> None:
    pair.sender.open(1, 0.0, 10.0)
    pair.sender.attach(reserve(pair, THEIRS), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0, state=OURS)
    pair.poll()
    pair.network.complete(pair.network.writes[0])
    pair.target.bytes[THEIRS[1], 5] ^= 1
    pair.settle()
    (failed,) = [event for event in pair.received if isinstance(event, ReceiveFailed)]
    assert "the digest of the state differs" in failed.reason


@pytest.mark.parametrize(
    "state",
    [[], THEIRS[:1], [THEIRS[0], THEIRS[0]], [REMOTE[0], THEIRS[0]], THEIRS[::-1], [16, 18], [31, 32]],
)
def test_a_ticket_needs_distinct_pages_for_the_whole_state(pair: Pair, state: list[int]) -> None:
    with pytest.raises(BadTicket):
        reserve(pair, state)


def test_a_sender_without_the_state_does_not_finish(pair: Pair) -> None:
    pair.sender.open(1, 0.0, 10.0)
    pair.sender.attach(reserve(pair, THEIRS), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert not any(isinstance(event, Ready) for event in pair.received)
    assert "a state of 0 pages" in pair.sent[0].reason


def test_states_of_other_shapes_are_refused_when_workers_meet(pair: Pair) -> None:
    other = Pool(4, replace(STATEFUL, state=StateLayout(2, ((1, (100, 300)),))))
    with pytest.raises(LayoutMismatch):
        pair.sender.peer.require(other.layout)
