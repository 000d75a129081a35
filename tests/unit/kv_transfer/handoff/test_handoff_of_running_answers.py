"""KV of a running answer follows it until the answer is paused and handed off."""

from __future__ import annotations

import pytest

from kv_transfer import CaughtUp, Drained, HandedOff, HandoffState, Ready, ReceiveFailed, SendFailed
from tests.kv_support import REQUEST, expect_handed_off
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, REMOTE, Pair


def follow(pair: Pair, num_tokens: int, known: int) -> None:
    """A running answer of which the receiver knows `known` tokens, in pages for NUM_TOKENS."""
    pair.sender.abort(1, 0.0)
    pair.settle()
    pair.sent.clear()
    pair.sender.open(2, 0.0, 10.0, keeps_decoding=True)
    pair.sender.computed(2, LOCAL, num_tokens, 0.0)
    ticket = pair.receiver.reserve(2, pair.sender.peer, REMOTE, 0, known, 0.0, 10.0, request_digest=REQUEST)
    pair.sender.attach(ticket, 0.0)


def test_pages_of_a_running_answer_are_sent_until_it_is_paused_with_less_than_a_page_left(
    pair: Pair,
) -> None:
    follow(pair, num_tokens=17, known=18)
    assert not pair.sender.poll(0.0)
    pair.settle()
    assert pair.sent == [CaughtUp(2)]
    assert pair.received == []
    pair.sender.computed(2, LOCAL, 21, 1.0)
    pair.settle()
    assert pair.sent == [CaughtUp(2)] * 2
    final = HandoffState((70, 71, 72, 73, 74), position=22, seed=42, request_digest=REQUEST)
    pair.sender.finish(2, LOCAL, 22, final, 2.0)
    pair.settle()
    assert pair.kinds() == ([CaughtUp, CaughtUp, HandedOff], [Ready])
    assert pair.received[0].final == final
    expect_handed_off(pair.source, LOCAL[:6], pair.target, REMOTE[:6])
    assert not pair.target.bytes[list(REMOTE[6:])].any()


def test_an_answer_that_outgrows_its_reserved_pages_is_not_transferred(pair: Pair) -> None:
    follow(pair, num_tokens=17, known=18)
    pair.settle()
    pair.sender.computed(2, range(9), 33, 1.0)
    pair.settle()
    assert pair.kinds() == ([CaughtUp, SendFailed], [ReceiveFailed, Drained])


@pytest.mark.parametrize("final", [HandoffState((), 18, 42, REQUEST), HandoffState((1,), 20, 42, REQUEST)])
def test_kv_of_the_last_token_is_never_transferred(pair: Pair, final: HandoffState) -> None:
    """Its logits are what the receiver has to compute."""
    follow(pair, num_tokens=17, known=18)
    pair.sender.finish(2, LOCAL, final.position, final, 1.0)
    pair.settle()
    assert [type(event) for event in pair.received] == [ReceiveFailed, Drained]
