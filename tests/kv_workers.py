"""A prefill and a decode worker without engines: pools, who owns which page, sender and receiver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import TypeVar

import numpy as np

from kv_transfer import KVLayout
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import Pool, receiver_on, sender_on

LAYOUT = KVLayout(weights="m", dtype="float32", num_layers=1, num_kv_heads=1, head_dim=2, page_size=2)
NUM_PAGES = 12


T = TypeVar("T")


class Use(Enum):
    IN_FLIGHT = auto()
    QUARANTINED = auto()
    HELD = auto()


@dataclass(slots=True, eq=False)
class Job:
    """One request, as both engines and the router see it."""

    id: int
    num_tokens: int
    first_token: int
    prefill: Prefill
    local: list[int]
    decode: Decode | None = None
    remote: list[int] = field(default_factory=list)
    computed: int = 0
    opened: bool = False
    finished: bool = False
    sent: bool = False
    """Whether the sender has reported an end."""

    @property
    def answer(self) -> int:
        """The only right first token."""
        return self.id * 1000 + self.num_tokens


class Prefill:
    """A prefill worker's process: pool, page owners, sender."""

    def __init__(self, network: Network, epoch: int) -> None:
        self.pool = Pool(NUM_PAGES, LAYOUT)
        self.free = set(range(NUM_PAGES))
        self.transport = NetworkTransport(f"p-{epoch}", self.pool, network)
        self.sender = sender_on(self.transport, self.pool, epoch, drain_timeout_s=2.0)


class Decode:
    """A decode worker's process: pool, page owners, receiver."""

    def __init__(self, network: Network, epoch: int) -> None:
        self.pool = Pool(NUM_PAGES, LAYOUT)
        self.free = set(range(NUM_PAGES))
        self.used: dict[int, tuple[Job, Use]] = {}
        times = count(1)
        self.receiver = receiver_on(
            NetworkTransport(f"d-{epoch}", self.pool, network),
            self.pool,
            epoch,
            reopen=lambda: NetworkTransport(f"d-{epoch}~{next(times)}", self.pool, network),
        )

    @property
    def transport(self) -> NetworkTransport:
        """Another one after each fence that cut it off."""
        assert isinstance(self.receiver.transport, NetworkTransport)
        return self.receiver.transport


def token_kv(job: Job, token: int) -> np.ndarray:
    """What the model computes for one token: `[row, token_bytes]`."""
    value = np.array([job.id * 1_000_003 + token], dtype="<u8").view(np.uint8)
    return np.broadcast_to(value, (LAYOUT.rows_per_page, LAYOUT.token_bytes))


def page_view(pool: Pool, page: int) -> np.ndarray:
    return pool.bytes[page].reshape(LAYOUT.rows_per_page, LAYOUT.page_size, LAYOUT.token_bytes)


def run_model(job: Job, upto: int) -> None:
    """Computes tokens up to `upto`, into the pages of the worker that the job is computed on."""
    for token in range(job.computed, upto):
        page = job.local[token // LAYOUT.page_size]
        page_view(job.prefill.pool, page)[:, token % LAYOUT.page_size] = token_kv(job, token)
    job.computed = upto


def choose(index: int, items: Sequence[T]) -> T:
    return items[index % len(items)]
