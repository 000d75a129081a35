"""One handoff at a time, on a network that waits to be told what to deliver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kv_transfer import (
    CaughtUp,
    Drained,
    Final,
    HandedOver,
    LayoutMismatch,
    Ready,
    ReceiveFailed,
    SendFailed,
    Ticket,
)
from kv_transfer.errors import BadTicket
from kv_transfer.handoff.messages import Drain, Message, Revoke, encode
from tests.kv_network import InFlightMessage, Network, NetworkTransport
from tests.kv_support import LAYOUT, REQUEST, Pool, expect_handed_over, final_for, receiver_on, sender_on

LOCAL, REMOTE = list(range(8)), list(range(20, 28))
NUM_TOKENS = 30


class Pair:
    def __init__(self) -> None:
        self.network = Network()
        self.source, self.target = Pool(32), Pool(32)
        self.source.fill(range(32))
        self.sender = sender_on(NetworkTransport("p", self.source, self.network), self.source, 1)
        self.receiver = receiver_on(NetworkTransport("d", self.target, self.network), self.target, 2)
        self.sent: list[Any] = []
        self.received: list[Any] = []

    def reserve(self, first_token: int = 0, timeout_s: float = 10.0) -> Ticket:
        return self.receiver.reserve(
            1,
            self.sender.peer,
            REMOTE[first_token // LAYOUT.page_size :],
            first_token,
            NUM_TOKENS,
            0.0,
            timeout_s,
            request_digest=REQUEST,
        )

    def poll(self, now: float = 0.0) -> None:
        self.sent += self.sender.poll(now)
        self.received += self.receiver.poll(now)

    def settle(self, now: float = 0.0) -> None:
        """Everything in flight arrives."""
        self.poll(now)
        while self.network.writes or self.network.messages:
            for write in list(self.network.writes):
                self.network.complete(write)
            for message in list(self.network.messages):
                self.network.deliver(message)
            self.poll(now)

    def kinds(self) -> tuple[list[type], list[type]]:
        return [type(event) for event in self.sent], [type(event) for event in self.received]


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.sender.open(1, 0.0, 10.0)
    return pair


def test_pages_of_a_chunk_leave_while_the_next_chunk_is_computed(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL[:3], 10, 1.0)
    (write,) = pair.network.writes
    assert sum(copy.length for copy in write.copies) == 2 * LAYOUT.page_bytes  # the third is not full yet
    pair.settle(1.5)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 2.0)
    pair.settle(2.5)
    (handed_over,) = pair.sent
    assert [(p.begin, p.end, p.first_token, p.num_tokens) for p in handed_over.pushes] == [
        (1.0, 1.5, 0, 8),
        (2.0, 2.5, 8, 22),
    ]
    (ready,) = pair.received
    assert (ready.transfer_s, ready.exposed_s) == (2.5, 0.5)
    expect_handed_over(pair.source, LOCAL, pair.target, REMOTE)


def test_tokens_that_the_receiver_has_cached_do_not_travel(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(first_token=12), 0.0)
    pair.sender.computed(1, LOCAL[:4], 16, 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOver], [Ready])
    assert pair.sent[0].bytes == 5 * LAYOUT.page_bytes
    expect_handed_over(pair.source, LOCAL[3:], pair.target, REMOTE[3:])
    assert not pair.target.bytes[REMOTE[:3]].any()


def test_a_ticket_that_comes_after_the_last_token_sends_everything_at_once(pair: Pair) -> None:
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.sender.attach(pair.reserve(), 1.0)
    pair.settle(1.0)
    assert pair.kinds() == ([HandedOver], [Ready])


def test_finish_is_said_only_after_the_last_write_is_complete(pair: Pair) -> None:
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


def test_garbage_behind_the_last_token_does_not_matter(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    tail = pair.source.bytes[LOCAL[-1]].reshape(LAYOUT.rows_per_page, LAYOUT.page_size, -1)
    tail[:, NUM_TOKENS % LAYOUT.page_size :] = 0
    pair.settle()
    assert pair.kinds() == ([HandedOver], [Ready])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"request_digest": 1}, "another request"),
        ({"position": NUM_TOKENS - 1}, "KV ends at token 29"),
    ],
)
def test_a_sender_that_computed_something_else_is_refused(
    pair: Pair, change: dict[str, int], reason: str
) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    final = replace(final_for(NUM_TOKENS), **change)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert reason in pair.received[0].reason
    assert reason in pair.sent[0].reason


def test_one_flipped_bit_is_noticed_and_located(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    (write,) = pair.network.writes
    pair.network.land(write)
    pair.network.land(write, flip_bit=True)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "the page of token 4 is not what was sent" in pair.received[0].reason


def test_a_digest_taken_too_early_is_taken_again(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    (write,) = pair.network.writes
    pair.network.messages.append(InFlightMessage(write.target, write.message))  # overtakes its data
    pair.network.deliver(pair.network.messages[0])
    pair.poll()
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOver], [Ready])


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
    assert pair.kinds() == ([HandedOver], [Ready])


def test_a_receiver_that_gives_up_waits_for_the_writes_to_end(pair: Pair) -> None:
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


def test_a_broken_link_fails_the_handoff_but_not_the_agreement_to_end_it(pair: Pair) -> None:
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


def test_a_write_that_hangs_does_not_hold_the_senders_pages_for_ever(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(timeout_s=1.0), 0.0)
    pair.sender.computed(1, LOCAL, 16, 0.0)
    pair.poll(1.0)
    assert pair.kinds()[0] == []
    pair.poll(6.0)
    assert pair.kinds() == ([SendFailed], [ReceiveFailed])
    pair.settle(7.0)  # the write ends after all: only now may the receiver reuse its pages
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_a_ticket_that_comes_too_late_is_answered_so_that_nobody_waits(pair: Pair) -> None:
    ticket = pair.reserve()
    pair.sender.abort(1, 0.0)
    pair.sender.attach(ticket, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert pair.sender.unexpected["ticket"] == 1


def test_a_handoff_revoked_before_it_began_never_begins(pair: Pair) -> None:
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
    assert pair.kinds() == ([HandedOver], [Ready])
    assert pair.receiver.unexpected == {"push": 1, "finish": 1}
    assert pair.sender.unexpected == {"confirm": 1}


def test_a_request_that_moves_to_other_pages_is_given_up(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, LOCAL[:2], 8, 0.0)
    pair.sender.computed(1, [9, 10, 11], 12, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert "moved" in pair.sent[0].reason


def follow(pair: Pair, num_tokens: int, known: int) -> None:
    """A running answer of which the receiver knows `known` tokens, in pages for NUM_TOKENS."""
    pair.sender.abort(1, 0.0)
    pair.settle()
    pair.sent.clear()
    pair.sender.open(2, 0.0, 10.0, goes_on=True)
    pair.sender.computed(2, LOCAL, num_tokens, 0.0)
    ticket = pair.receiver.reserve(2, pair.sender.peer, REMOTE, 0, known, 0.0, 10.0, request_digest=REQUEST)
    pair.sender.attach(ticket, 0.0)


def test_a_running_answer_is_followed_until_less_than_a_page_is_missing_and_then_handed_over(
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
    final = Final((70, 71, 72, 73, 74), position=22, seed=42, request_digest=REQUEST)
    pair.sender.finish(2, LOCAL, 22, final, 2.0)
    pair.settle()
    assert pair.kinds() == ([CaughtUp, CaughtUp, HandedOver], [Ready])
    assert pair.received[0].final == final
    expect_handed_over(pair.source, LOCAL[:6], pair.target, REMOTE[:6])
    assert not pair.target.bytes[list(REMOTE[6:])].any()


def test_an_answer_that_outgrows_the_pages_reserved_for_it_is_not_handed_over(pair: Pair) -> None:
    follow(pair, num_tokens=17, known=18)
    pair.settle()
    pair.sender.computed(2, range(9), 33, 1.0)
    pair.settle()
    assert pair.kinds() == ([CaughtUp, SendFailed], [ReceiveFailed, Drained])


@pytest.mark.parametrize("final", [Final((), 18, 42, REQUEST), Final((1,), 20, 42, REQUEST)])
def test_kv_of_the_last_token_is_never_handed_over(pair: Pair, final: Final) -> None:
    """Its logits are what the receiver has to compute."""
    follow(pair, num_tokens=17, known=18)
    pair.sender.finish(2, LOCAL, final.position, final, 1.0)
    pair.settle()
    assert [type(event) for event in pair.received] == [ReceiveFailed, Drained]


def test_a_receiver_may_have_more_of_a_prompt_than_it_is_handed(pair: Pair) -> None:
    """It had that cached. Nothing travels then."""
    pair.sender.attach(pair.reserve(first_token=16), 0.0)
    pair.sender.finish(1, LOCAL, 8, Final((), 8, 42, REQUEST), 0.0)
    pair.settle()
    assert pair.kinds() == ([HandedOver], [Ready])
    assert pair.sent[0].bytes == 0


def test_a_sender_that_computes_more_than_was_asked_for_is_stopped_before_it_writes(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.computed(1, list(range(10)), NUM_TOKENS + 6, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert not pair.target.bytes.any()


@pytest.mark.parametrize(
    "change",
    [
        {"first_token": 2},
        {"first_token": 32},
        {"pages": tuple([20] * 8)},
        {"pages": tuple(range(26, 34))},
        {"epoch": 3},
        {"layout_hash": "else"},
    ],
)
def test_a_ticket_that_contradicts_itself_or_the_pool_is_never_acted_on(
    pair: Pair, change: dict[str, Any]
) -> None:
    pair.sender.attach(replace(pair.reserve(), **change), 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert not pair.network.writes


def test_workers_with_different_layouts_refuse_each_other(pair: Pair) -> None:
    stranger = replace(pair.sender.peer, layout_hash="else")
    with pytest.raises(LayoutMismatch, match="--page-size"):
        pair.receiver.reserve(1, stranger, REMOTE, 0, NUM_TOKENS, 0.0, 1.0, request_digest=0)
    assert pair.receiver.num_live == 0


def test_a_reservation_of_the_wrong_number_of_pages_is_refused(pair: Pair) -> None:
    with pytest.raises(BadTicket, match="7 pages, not 8"):
        pair.receiver.reserve(1, pair.sender.peer, REMOTE[1:], 0, NUM_TOKENS, 0.0, 1.0, request_digest=0)


def assert_ignored(pair: Pair, kind: str, **change: int) -> None:
    """A message that ends the handoff, on either side, unless `change` makes it unbelievable."""
    ticket = pair.reserve()
    pair.sender.attach(ticket, 0.0)
    to_receiver = Message(1, source=1, target=2, secret=ticket.secret, body=Drain(""))
    to_sender = Message(1, source=2, target=1, secret=ticket.secret, body=Revoke(pair.receiver.peer, ""))
    for target, message in (("d", to_receiver), ("p", to_sender)):
        pair.network.messages.append(InFlightMessage(target, encode(replace(message, **change))))
    pair.settle()
    assert pair.kinds() == ([], [])
    assert pair.sender.unexpected == pair.receiver.unexpected == {kind: 1}


@pytest.mark.parametrize("change", [{"source": 9}, {"target": 9}])
def test_a_message_from_or_for_another_incarnation_is_ignored(pair: Pair, change: dict[str, int]) -> None:
    assert_ignored(pair, "foreign", **change)


@pytest.mark.parametrize("guess", [0, 1, 2**64 - 1])
def test_a_message_of_somebody_who_was_not_told_the_ticket_is_ignored(pair: Pair, guess: int) -> None:
    assert_ignored(pair, "forged", secret=guess)


def test_a_forged_ticket_moves_no_page_into_use(pair: Pair) -> None:
    """Whoever can reach the transport knows ids and epochs; the secret was told to the router alone."""
    pair.sender.attach(replace(pair.reserve(), secret=0), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([], [])
    assert pair.receiver.num_live == 1
    assert pair.receiver.unexpected["forged"] > 0


def test_a_revocation_may_overtake_the_ticket_and_is_answered_with_its_secret(pair: Pair) -> None:
    ticket = pair.reserve()
    pair.receiver.abort(1, 0.0)
    pair.settle()
    pair.sender.attach(ticket, 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])


def test_a_message_for_the_previous_incarnation_is_ignored(pair: Pair) -> None:
    pair.sender.attach(pair.reserve(), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    for write in list(pair.network.writes):
        pair.network.complete(write)
    pair.poll()
    restarted = receiver_on(NetworkTransport("d", Pool(32), pair.network), Pool(32), epoch=3)
    for message in list(pair.network.messages):
        pair.network.deliver(message)
    assert restarted.poll(0.0) == []
    assert restarted.unexpected.total() == 2
