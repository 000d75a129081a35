"""Workers without engines: pools, who owns which page, KV endpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import count
from typing import TypeVar

import numpy as np

from common.kv_groups import NO_PAGE, KVGroup, full_group
from kv_transfer import HandoffState, KVEndpoint, KVLayout, KVPort
from kv_transfer.state_layout import StateLayout
from kv_transfer.ticket_pages import TicketPages
from tests.kv_network import Network, NetworkTransport
from tests.kv_support import Pool

LAYOUT = KVLayout(model="m", dtype="float32", groups=full_group(1), num_kv_heads=1, head_dim=2, page_size=2)
_WINDOWS = replace(LAYOUT, groups=(KVGroup((0,), 3), KVGroup((1,)), KVGroup((2,), 1)))
LAYOUTS = [
    LAYOUT,
    _WINDOWS,
    replace(LAYOUT, state=StateLayout(2, ((1, (12, 8, 4)),))),
    replace(_WINDOWS, state=StateLayout(1, ((2, (8, 4)),))),
]
_NUM_BLOCKS = 12
_NUM_SLOTS = 4


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
    """Tokens that the receiver knows."""
    first_token: int
    place: int
    """Which of the two workers computes the prompt."""
    source: Worker
    """The incarnation that does."""
    local: list[int]
    """Its block table there: of each block a page for every group, or NO_PAGE behind a window."""
    state: list[int]
    """Pages of its recurrent state there."""
    target: Worker | None = None
    remote: list[int] = field(default_factory=list)
    """Pages of the ticket."""
    remote_state: list[int] = field(default_factory=list)
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

    def final(self, wrong: int = 0) -> HandoffState:
        """State of a prompt at the end; `wrong`: added to what the receiver can check."""
        return HandoffState((self.answer + wrong,), self.num_tokens, 0, self.id + wrong)

    def token(self, index: int) -> int:
        """The only right token at this position, of those that are sampled."""
        return self.id * 1000 + index

    @property
    def decodes(self) -> bool:
        return self.runs and not self.stopped and not self.ended

    @property
    def lent(self) -> list[int]:
        """All that its sender may write."""
        return self.remote + self.remote_state

    @property
    def order(self) -> TicketPages:
        return TicketPages(self.source.layout, self.first_token, self.num_tokens)


class Worker:
    """A worker's process: pool, page owners, KV endpoint. Pages of states follow those of tokens."""

    def __init__(self, network: Network, epoch: int, layout: KVLayout) -> None:
        self.epoch = epoch
        self.layout = layout
        self.num_pages = _NUM_BLOCKS * len(layout.groups)
        self.pool = Pool(self.num_pages + _NUM_SLOTS * layout.state_pages, layout)
        self.free = set(range(self.num_pages))
        self.free_states = set(range(self.num_pages, self.pool.num_pages))
        self.used: dict[int, tuple[Job, Use]] = {}
        times = count(1)
        self.port = KVPort(
            NetworkTransport(f"w-{epoch}", self.pool, network),
            self.pool.memory,
            layout,
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

    def has_room(self, count: int) -> bool:
        """For `count` pages, and a state if the layout has one."""
        return count <= len(self.free) and self.layout.state_pages <= len(self.free_states)

    def take(self, count: int, job: Job, use: Use) -> list[int]:
        """Free pages; none if there are too few."""
        return self._take(self.free, count, job, use)

    def take_state(self, job: Job, use: Use) -> list[int]:
        return self._take(self.free_states, self.layout.state_pages, job, use)

    def _take(self, free: set[int], count: int, job: Job, use: Use) -> list[int]:
        pages = sorted(free)[:count]
        if len(pages) < count:
            return []
        free -= set(pages)
        self.use(pages, job, use)
        return pages

    def use(self, pages: Sequence[int], job: Job, use: Use) -> None:
        self.used.update(dict.fromkeys(pages, (job, use)))

    def give_back(self, pages: Iterable[int]) -> None:
        for page in pages:
            del self.used[page]
            (self.free if page < self.num_pages else self.free_states).add(page)


def token_kv(job: Job, token: int, group: int) -> np.ndarray:
    """What the model computes for one token in one group of layers: `[row, token_bytes]`."""
    layout = job.source.layout
    value = np.array([job.id * 1_000_003 + 1_009 * group + token], dtype="<u8").view(np.uint8)
    return np.broadcast_to(value, (layout.rows_per_page, layout.token_bytes))


def state_kv(job: Job, num_tokens: int) -> np.ndarray:
    """The recurrent state after that number of tokens: `[page, page_bytes]`, with nothing behind it."""
    layout = job.source.layout
    drawn = np.random.default_rng((job.id, num_tokens)).bytes(layout.state_bytes)
    rest = layout.state_pages * layout.page_bytes - layout.state_bytes
    return np.pad(np.frombuffer(drawn, dtype=np.uint8), (0, rest)).reshape(-1, layout.page_bytes)


def page_view(pool: Pool, page: int) -> np.ndarray:
    layout = pool.layout
    return pool.bytes[page].reshape(layout.rows_per_page, layout.page_size, layout.token_bytes)


def run_model(job: Job, upto: int) -> None:
    """Computes tokens up to `upto`, into the pages of the worker that the job is computed on."""
    layout, pool = job.source.layout, job.source.pool
    for token in range(job.computed, upto):
        block, offset = divmod(token, layout.page_size)
        for group in range(len(layout.groups)):
            page = job.local[block * len(layout.groups) + group]
            if page != NO_PAGE:
                page_view(pool, page)[:, offset] = token_kv(job, token, group)
    job.computed = upto
    pool.bytes[job.state] = state_kv(job, upto)


def pass_by(job: Job) -> None:
    """Give back pages that no token from the last computed one on sees; the next owner overwrites them."""
    groups, page_size = job.source.layout.groups, job.source.layout.page_size
    for number, group in enumerate(groups):
        behind = group.first_needed(job.computed - 1) // page_size
        places = range(number, behind * len(groups), len(groups))
        passed = [job.local[place] for place in places if job.local[place] != NO_PAGE]
        for place in places:
            job.local[place] = NO_PAGE
        job.source.pool.bytes[passed] = 0xEE
        job.source.give_back(passed)


def choose(index: int, items: Sequence[T]) -> T:
    return items[index % len(items)]
