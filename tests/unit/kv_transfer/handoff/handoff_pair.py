"""A sender and a receiver on a network that delivers only what a test tells it to."""

from __future__ import annotations

from typing import Any

from kv_transfer import KVLayout, Ticket
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import LAYOUT, REQUEST, Pool, receiver_on, sender_on

LOCAL, REMOTE = list(range(8)), list(range(20, 28))
NUM_TOKENS = 30


class Pair:
    def __init__(self, layout: KVLayout = LAYOUT) -> None:
        self.network = Network()
        self.source, self.target = Pool(32, layout), Pool(32, layout)
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
