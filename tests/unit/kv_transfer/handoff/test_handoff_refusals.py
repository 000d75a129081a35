"""Tickets and messages that are refused or ignored, before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kv_transfer import Drained, LayoutMismatch, ReceiveFailed, SendFailed
from kv_transfer.errors import BadTicket
from kv_transfer.handoff.messages import Drain, HandoffMessage, Revoke, encode
from tests.kv_network import InFlightMessage, NetworkTransport
from tests.kv_support import Pool, final_for, receiver_on
from tests.unit.kv_transfer.handoff.handoff_pair import LOCAL, NUM_TOKENS, REMOTE, Pair


def test_a_sender_that_computes_more_than_the_ticket_holds_fails_before_it_writes(pair: Pair) -> None:
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
def test_a_ticket_that_contradicts_itself_or_the_pool_is_refused(pair: Pair, change: dict[str, Any]) -> None:
    pair.sender.attach(replace(pair.reserve(), **change), 0.0)
    pair.settle()
    assert pair.kinds() == ([SendFailed], [ReceiveFailed, Drained])
    assert pair.received[0].by_sender
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
    to_receiver = HandoffMessage(1, source=1, target=2, secret=ticket.secret, body=Drain(""))
    to_sender = HandoffMessage(
        1, source=2, target=1, secret=ticket.secret, body=Revoke(pair.receiver.peer, "")
    )
    for target, message in (("d", to_receiver), ("p", to_sender)):
        pair.network.messages.append(InFlightMessage(target, encode(replace(message, **change))))
    pair.settle()
    assert pair.kinds() == ([], [])
    assert pair.sender.unexpected == pair.receiver.unexpected == {kind: 1}


def test_bytes_that_are_no_message_are_counted_and_ignored(pair: Pair) -> None:
    pair.reserve()
    for target in ("d", "p"):
        pair.network.messages += [InFlightMessage(target, b"no message"), InFlightMessage(target, b"")]
    pair.settle()
    assert pair.kinds() == ([], [])
    assert pair.sender.unexpected == pair.receiver.unexpected == {"damaged": 2}


@pytest.mark.parametrize("change", [{"source": 9}, {"target": 9}])
def test_a_message_from_or_for_another_incarnation_is_ignored(pair: Pair, change: dict[str, int]) -> None:
    assert_ignored(pair, "foreign", **change)


@pytest.mark.parametrize("guess", [0, 1, 2**64 - 1])
def test_a_message_without_the_tickets_secret_is_ignored(pair: Pair, guess: int) -> None:
    assert_ignored(pair, "forged", secret=guess)


def test_a_forged_ticket_moves_no_page_into_use(pair: Pair) -> None:
    """A process that can reach the transport knows ids and epochs; only the router has the secret."""
    pair.sender.attach(replace(pair.reserve(), secret=0), 0.0)
    pair.sender.finish(1, LOCAL, NUM_TOKENS, final_for(NUM_TOKENS), 0.0)
    pair.settle()
    assert pair.kinds() == ([], [])
    assert pair.receiver.num_live == 1
    assert pair.receiver.unexpected["forged"] > 0


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
