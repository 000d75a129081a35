"""What a receiver has of a prompt whose sender is lost between two chunks."""

from __future__ import annotations

import pytest

from kv_transfer import Drained, ReceiveFailed
from tests.kv_support import LAYOUT, REQUEST, final_for
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, NUM_TOKENS, REMOTE, Pair

PAGE = LAYOUT.page_size


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.sender.open(1, 0.0, 10.0, request_digest=REQUEST)
    return pair


def lose_the_sender(pair: Pair) -> int:
    """Its process ends; how many pages the receiver may use."""
    pair.network.close("p")
    pair.network.notice("p")
    pair.poll()
    failed, drained = pair.received
    assert isinstance(failed, ReceiveFailed)
    assert failed.by_sender
    assert isinstance(drained, Drained)
    return drained.verified


def test_pages_of_finished_chunks_are_verified(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 2 * PAGE, 0.0)
    pair.settle()
    pair.sender.computed(1, LOCAL, 5 * PAGE + 1, 0.0)
    pair.settle()
    assert lose_the_sender(pair) == 5
    assert (pair.target.bytes[REMOTE[:5]] == pair.source.bytes[LOCAL[:5]]).all()


def test_pages_behind_those_that_the_receiver_has_cached_are_counted_from_there(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(first_token=2 * PAGE), 0.0)
    pair.sender.computed(1, LOCAL, 5 * PAGE, 0.0)
    pair.settle()
    assert lose_the_sender(pair) == 3


def test_a_chunk_of_which_only_the_digests_have_arrived_is_not_verified(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 2 * PAGE, 0.0)
    pair.settle()
    pair.sender.computed(1, LOCAL, 4 * PAGE, 0.0)
    pair.network.deliver(pair.network.messages[0])
    assert lose_the_sender(pair) == 2


def test_pages_from_the_first_damaged_one_on_are_not_verified(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 3 * PAGE, 0.0)
    (write,) = pair.network.writes
    pair.network.land(write, piece=1, flip_bit=True)
    pair.settle()
    assert lose_the_sender(pair) == 1


def test_nothing_is_verified_of_a_sender_that_computes_another_request() -> None:
    pair = Pair()
    pair.sender.open(1, 0.0, 10.0, request_digest=REQUEST + 1)
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 2 * PAGE, 0.0)
    pair.settle()
    assert lose_the_sender(pair) == 0
    assert pair.receiver.unexpected["digests"] == 1


def test_nothing_is_verified_of_a_handoff_that_ended_with_a_wrong_digest(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 2 * PAGE, 0.0)
    pair.settle()
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    (write,) = pair.network.writes
    pair.network.land(write, flip_bit=True)
    pair.settle()
    failed, drained = pair.received
    assert "digest" in failed.reason
    assert drained.verified == 0


def test_what_a_client_no_longer_wants_is_verified_too(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 2 * PAGE, 0.0)
    pair.settle()
    pair.receiver.abort(1, 0.0)
    pair.settle()
    _, drained = pair.received
    assert drained.verified == 2
