"""Workers without engines: pools, who owns which page, KV endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import TypeVar

import numpy as np

from common.kv_groups import full_group
from kv_transfer import Final, KVEndpoint, KVLayout, KVPort
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import Pool

LAYOUT = KVLayout(weights="m", dtype="float32", groups=full_group(1), num_kv_heads=1, head_dim=2, page_size=2)
NUM_PAGES = 12


T = TypeVar("T")


class Use(Enum):
    SENDING = auto()
    RUNNING = auto()
    IN_FLIGHT = auto()
    QUARANTINED = auto()
    HELD = auto()


@dataclass(slots=True, eq=False)
class Job:
    """One request, as both engines and the router see it."""

    id: int
    num_tokens: int
    """That the receiver knows."""
    first_token: int
    place: int
    """Which of the two workers computes the prompt."""
    source: Worker
    """The incarnation that does."""
    local: list[int]
    target: Worker | None = None
    remote: list[int] = field(default_factory=list)
    computed: int = 0
    opened: bool = False
    finished: bool = False
    sent: bool = False
    """Whether the sender has reported an end."""
    runs: bool = False
    """It is an answer that goes on while its KV travels, until it is stopped for the handoff."""
    room: int = 0
    """Tokens that it may grow by until then."""
    stopped: bool = False
    ended: bool = False
    """The answer is complete, or its client is gone."""
    handed: int = 0
    """Tokens whose KV the receiver accepted."""

    @property
    def answer(self) -> int:
        """The only right first token."""
        return self.token(self.num_tokens)

    def final(self, wrong: int = 0) -> Final:
        """Of a prompt; `wrong`: added to what the receiver can check."""
        return Final((self.answer + wrong,), self.num_tokens, 0, self.id + wrong)

    def token(self, index: int) -> int:
        """The only right token at this position, of those that are sampled."""
        return self.id * 1000 + index

    @property
    def decodes(self) -> bool:
        return self.runs and not self.stopped and not self.ended


class Worker:
    """A worker's process: pool, page owners, KV endpoint."""

    def __init__(self, network: Network, epoch: int) -> None:
        self.epoch = epoch
        self.pool = Pool(NUM_PAGES, LAYOUT)
        self.free = set(range(NUM_PAGES))
        self.used: dict[int, tuple[Job, Use]] = {}
        times = count(1)
        self.port = KVPort(
            NetworkTransport(f"w-{epoch}", self.pool, network),
            self.pool.memory,
            LAYOUT,
            epoch,
            reopen=lambda: NetworkTransport(f"w-{epoch}~{next(times)}", self.pool, network),
        )
        self.endpoint = KVEndpoint(self.port, drain_timeout_s=2.0)
        self.known = self.port.peer
        """As the router knows it."""

    @property
    def transport(self) -> NetworkTransport:
        """Another one after each fence that cut it off."""
        assert isinstance(self.port.transport, NetworkTransport)
        return self.port.transport

    def take(self, count: int, job: Job, use: Use) -> list[int]:
        """Free pages; none if there are too few."""
        pages = sorted(self.free)[:count]
        if len(pages) < count:
            return []
        self.free -= set(pages)
        self.use(pages, job, use)
        return pages

    def use(self, pages: Sequence[int], job: Job, use: Use) -> None:
        self.used.update(dict.fromkeys(pages, (job, use)))

    def give_back(self, pages: Sequence[int]) -> None:
        for page in pages:
            del self.used[page]
        self.free.update(pages)


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
        page_view(job.source.pool, page)[:, token % LAYOUT.page_size] = token_kv(job, token)
    job.computed = upto


def choose(index: int, items: Sequence[T]) -> T:
    return items[index % len(items)]
