"""How a handoff ends early: deadlines, aborts, lost messages and broken links."""

from __future__ import annotations

import pytest

from kv_transfer import Drained, HandedOff, Ready, ReceiveFailed, SendFailed
from tests.kv_support import final_for
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, NUM_TOKENS, Pair


@pytest.mark.parametrize("tokens", [0, 16, NUM_TOKENS])
def test_a_deadline_ends_the_handoff_on_both_sides_wherever_it_is(pair: Pair, tokens: int) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    if tokens == NUM_TOKENS:
        pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    else:
        pair.sender.computed(1, LOCAL, tokens, 0.0)
    pair.poll(9.9)
    assert pair.kinds() == ([], [])
    pair.poll(10.0)
    pair.settle(10.0)
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "deadline" in pair.received[0].reason


def test_a_long_prompt_whose_chunks_keep_coming_outlives_the_timeout(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    for chunk in range(1, 8):
        pair.sender.computed(1, LOCAL, 4 * chunk, 9.0 * chunk)
        pair.settle(9.0 * chunk)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 70.0)
    pair.settle(70.0)
    assert pair.kinds() == ([HandedOff], [Ready])


def test_an_aborted_receiver_waits_for_the_writes_to_end(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.receiver.abort(1, 0.0)
    (revoke,) = pair.network.messages
    pair.network.deliver(revoke)
    pair.poll()
    assert pair.kinds() == ([], [ReceiveFailed])
    pair.sender.computed(1, LOCAL, 24, 0.0)
    assert len(pair.network.writes) == 1  # nothing new is started
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert not pair.received[0].by_sender


def test_a_lost_revoke_is_repeated_until_it_is_answered(pair: Pair) -> None:
    pair.reserve()
    pair.receiver.abort(1, 0.0)
    pair.network.messages.clear()
    pair.poll(0.2)
    assert not pair.network.messages
    pair.poll(0.25)
    assert len(pair.network.messages) == 1
    pair.settle(0.25)
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_a_broken_link_fails_the_handoff_but_not_its_drain(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.network.disconnect()
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_a_revoke_is_sent_even_if_the_link_broke_since(pair: Pair) -> None:
    pair.reserve()
    pair.network.disconnect()
    pair.receiver.abort(1, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_a_sender_that_aborts_tells_the_receiver_at_once(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.abort(1, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "aborted by the sender" in pair.received[0].reason


def test_a_write_that_hangs_does_not_hold_the_senders_pages_forever(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(timeout_s=1.0), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.poll(1.0)
    assert pair.kinds()[0] == []
    pair.poll(6.0)
    assert pair.kinds() == ([SendFailed], [ReceiveFailed])
    pair.settle(7.0)  # the write ends after all: only now may the receiver reuse its pages
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_repeated_revokes_do_not_extend_the_drain_timeout(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.receiver.abort(1, 0.0)
    for quarters in range(1, 22):  # the write hangs; the receiver repeats Revoke every 0.25 s
        for message in list(pair.network.messages):
            pair.network.deliver(message)
        pair.poll(quarters / 4)
    assert pair.kinds() == ([SendFailed], [ReceiveFailed])


def test_a_late_ticket_is_answered_with_drain(pair: Pair) -> None:
    ticket = pair.reserve()
    pair.sender.abort(1, 0.0)
    pair.sender.attach(ticket, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert pair.sender.unexpected["ticket"] == 1


def test_a_handoff_revoked_before_it_was_opened_is_never_opened(pair: Pair) -> None:
    late = Pair()
    ticket = late.reserve()
    late.receiver.abort(1, 0.0)
    late.settle()
    assert late.kinds() == ([], [ReceiveFailed, Drained])
    late.sender.open(1, 0.0, 10.0)
    late.sender.attach(ticket, 0.0)
    late.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    late.settle()
    assert late.kinds()[0] == [SendFailed]
    assert not late.target.bytes.any()
