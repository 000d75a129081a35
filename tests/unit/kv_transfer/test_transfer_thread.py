"""Handoffs between two threads of one process, as two workers would run them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kv_transfer import (
    Drained,
    HandedOff,
    Ready,
    ReceiveFailed,
    Reserved,
    SendFailed,
    TransferThread,
)
from kv_transfer.transports import LoopbackNetwork, LoopbackTransport
from tests.kv_support import LAYOUT, REQUEST, Pool, expect_handed_off, final_for, receiver_on, sender_on

PAGES = list(range(8))


class Pair:
    """A sender and a receiver, each on its own thread, and their events."""

    def __init__(self) -> None:
        network = LoopbackNetwork()
        self.source, self.target = Pool(16), Pool(16)
        self.source.fill(PAGES)
        self.sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        sender = sender_on(LoopbackTransport("p", self.source.memory, network), self.source)
        receiver = receiver_on(LoopbackTransport("d", self.target.memory, network), self.target)
        self.threads = [
            TransferThread(sender.endpoint, self.sent.put, self.sent.put),
            TransferThread(receiver.endpoint, self.received.put, self.received.put),
        ]
        self.sender = self.threads[0].sender
        self.receiver = self.threads[1].receiver

    def reserve(self, num_tokens: int = 30) -> Reserved:
        self.receiver.reserve(1, self.threads[0].peer, PAGES, 0, num_tokens, 5.0, request_digest=REQUEST)
        event = self.received.get(timeout=5)
        assert isinstance(event, Reserved)
        return event


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    for thread in pair.threads:
        thread.start()
    yield pair
    for thread in pair.threads:
        thread.stop()


def test_a_prompt_computed_in_chunks_arrives_intact(pair: Pair) -> None:
    pair.sender.open(1, timeout_s=5.0)
    pair.sender.computed(1, PAGES[:2], 8)
    pair.sender.attach(pair.reserve().ticket)
    pair.sender.computed(1, PAGES[:5], 20)
    pair.sender.finish(1, PAGES, 30, final_for(30))
    ready, handed_off = pair.received.get(timeout=5), pair.sent.get(timeout=5)
    assert isinstance(ready, Ready)
    assert ready.final == final_for(30)
    assert 0 <= ready.exposed_s <= ready.transfer_s < 5
    assert isinstance(handed_off, HandedOff)
    assert [(push.first_token, push.num_tokens) for push in handed_off.pushes] == [(0, 8), (8, 12), (20, 10)]
    assert handed_off.bytes == 8 * LAYOUT.page_bytes
    expect_handed_off(pair.source, PAGES, pair.target, PAGES)


def test_an_abort_reaches_the_other_side_and_returns_its_pages(pair: Pair) -> None:
    pair.sender.open(1, timeout_s=5.0)
    pair.sender.attach(pair.reserve().ticket)
    pair.receiver.abort(1)
    assert isinstance(pair.received.get(timeout=5), ReceiveFailed)
    assert pair.received.get(timeout=5) == Drained(1)
    assert isinstance(pair.sent.get(timeout=5), SendFailed)


def test_a_refused_reservation_is_an_event_like_any_other(pair: Pair) -> None:
    stranger = replace(pair.threads[0].peer, layout_hash="another")
    pair.receiver.reserve(1, stranger, PAGES, 0, 30, 5.0, request_digest=REQUEST)
    failed = pair.received.get(timeout=5)
    assert isinstance(failed, ReceiveFailed)
    assert "--page-size" in failed.reason
    assert pair.received.get(timeout=5) == Drained(1)


def test_a_fault_of_the_endpoint_itself_is_reported_once_and_ends_the_thread(pair: Pair) -> None:
    pair.sender.open(1, timeout_s=5.0)
    pair.reserve()
    pair.receiver.reserve(1, pair.threads[0].peer, PAGES, 0, 30, 5.0, request_digest=REQUEST)
    assert isinstance(pair.received.get(timeout=5), ValueError)
