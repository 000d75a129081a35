"""One handoff from ticket to confirmation: pages, order of writes and messages, digests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kv_transfer import Drained, HandedOff, HandoffState, Ready, ReceiveFailed, SendFailed
from tests.kv_network import InFlightMessage
from tests.kv_support import LAYOUT, REQUEST, expect_handed_off, final_for
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, NUM_TOKENS, REMOTE, Pair


def test_pages_of_a_chunk_are_sent_while_the_next_chunk_is_computed(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL[:3], 10, 1.0)
    (write,) = pair.network.writes
    assert sum(copy.length for copy in write.copies) == 2 * LAYOUT.page_bytes  # the third is not full yet
    pair.settle(1.5)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 2.0)
    pair.settle(2.5)
    (handed_off,) = pair.sent
    assert [(p.begin, p.end, p.first_token, p.num_tokens) for p in handed_off.pushes] == [
        (1.0, 1.5, 0, 8),
        (2.0, 2.5, 8, 22),
    ]
    (ready,) = pair.received
    assert (ready.transfer_s, ready.exposed_s) == (2.5, 0.5)
    expect_handed_off(pair.source, LOCAL, pair.target, REMOTE)


def test_tokens_cached_at_the_receiver_are_not_sent(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(first_token=12), 0.0)
    pair.sender.computed(1, LOCAL[:4], 16, 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])
    assert pair.sent[0].bytes == 5 * LAYOUT.page_bytes
    expect_handed_off(pair.source, LOCAL[3:], pair.target, REMOTE[3:])
    assert not pair.target.bytes[REMOTE[:3]].any()


def test_a_ticket_that_comes_after_the_last_token_sends_everything_at_once(pair: Pair) -> None:
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.sender.attach(pair.reserve(), 1.0)
    pair.settle(1.0)
    assert pair.kinds() == ([HandedOff], [Ready])


def test_finish_is_sent_only_after_the_last_write_is_complete(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    first, second = pair.network.writes
    pair.network.complete(second)
    pair.poll()
    assert len(pair.network.messages) == 1  # the push notice of the second write, and nothing else
    pair.network.complete(first)
    pair.poll()
    assert len(pair.network.messages) == 3


def test_bytes_after_the_last_token_are_not_verified(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    tail = pair.source.bytes[LOCAL[-1]].reshape(LAYOUT.rows_per_page, LAYOUT.page_size, -1)
    tail[:, NUM_TOKENS % LAYOUT.page_size :] = 0
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request_digest": 1}, "another request"),
        ({"position": NUM_TOKENS - 1}, "KV ends at token 29"),
    ],
)
def test_a_sender_that_computed_another_request_is_refused(
    pair: Pair, change: dict[str, int], reason: str
) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    final = replace(final_for(NUM_TOKENS), **change)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert reason in pair.received[0].reason
    assert reason in pair.sent[0].reason


def test_one_flipped_bit_is_detected_and_located(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    (write,) = pair.network.writes
    pair.network.land(write)
    pair.network.land(write, flip_bit=True)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "the digest of the page of token 4 differs" in pair.received[0].reason


def test_a_page_digested_too_early_is_digested_again(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    (write,) = pair.network.writes
    pair.network.messages.append(InFlightMessage(write.target, write.message))  # overtakes its data
    pair.network.deliver(pair.network.messages[0])
    pair.poll()
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])


def test_duplicates_of_every_message_are_counted_and_change_nothing(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    seen = []
    pair.poll()
    while pair.network.writes or pair.network.messages:
        for write in list(pair.network.writes):
            pair.network.complete(write)
        seen += pair.network.messages
        for message in list(pair.network.messages):
            pair.network.deliver(message)
        pair.poll()
    assert len(seen) == 3
    for message in seen:
        pair.network.messages.append(message)
        pair.network.deliver(message)
    pair.poll()
    assert pair.kinds() == ([HandedOff], [Ready])
    assert pair.receiver.unexpected == {"push": 1, "finish": 1}
    assert pair.sender.unexpected == {"confirm": 1}


def test_a_handoff_is_aborted_when_the_requests_pages_change(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL[:2], 8, 0.0)
    pair.sender.computed(1, [9, 10, 11], 12, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "pages changed" in pair.sent[0].reason


def test_a_receiver_may_have_cached_more_of_a_prompt_than_is_sent(pair: Pair) -> None:
    """It had that cached. Nothing travels then."""
    pair.sender.attach(pair.reserve(first_token=16), 0.0)
    pair.sender.finish(1, LOCAL, 8, HandoffState((), 8, 42, REQUEST), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOff], [Ready])
    assert pair.sent[0].bytes == 0


def test_a_revocation_may_overtake_the_ticket_and_is_answered_with_its_secret(pair: Pair) -> None:
    ticket = pair.reserve()
    pair.receiver.abort(1, 0.0)
    pair.settle()
    pair.sender.attach(ticket, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
