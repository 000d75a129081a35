"""The account of one worker's load: what this router has sent to it, and what the worker reports.

It is the only one. A `Task` is the work of one attempt on the worker. Load changes only where a task begins,
changes its phase or ends, and everything else is derived from the tasks that there are: room, queue time, the
live page and the views of placement. An account belongs to a session. A worker that is reached again, even
the same process, begins with an empty one, and tasks of the lost session end in the old one.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from common.block_hash import BlockHash
from common.kv_groups import RequestPages
from router.placement.account.cached_prefixes import CachedPrefixes
from router.placement.account.others import NOBODY, Others
from router.placement.account.room import ONE_TOKEN_PAGES, Room
from router.placement.images import ImageSpans, image_tokens
from rpc.baton.v1 import worker_pb2

_MEMORY_S: Final = 15.0
"""Time constant: several answers, so that workers do not change roles with every burst."""
_LEAST_S: Final = 1.0
"""Shortest interval of a rate; otherwise the first request would make it infinite."""


class DecayingRate:
    """Sums amounts with exponential decay; times must not decrease."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0
        self._first_at: float | None = None

    def add(self, amount: float, now: float) -> None:
        if self._first_at is None:
            self._first_at = self._at = now
        self._sum = self._sum * math.exp((self._at - now) / _MEMORY_S) + amount
        self._at = now

    def rate(self, now: float) -> float:
        """Amount per second; 0 if nothing was ever added."""
        if self._first_at is None:
            return 0.0
        window = -_MEMORY_S * math.expm1((self._first_at - now) / _MEMORY_S)
        return self._sum * math.exp((self._at - now) / _MEMORY_S) / max(window, _LEAST_S)


_WEIGHT: Final = 0.1
"""Weight of the latest reservation in the moving average of the share of uncached pages."""


class TaskPhase(StrEnum):
    """What a task does on its worker."""

    PROMISED = "promised"
    """Room to decode is reserved; nothing was sent."""
    PREFILL = "prefill"
    """Its prompt is queued or computed here, and its answer will be decoded here."""
    PREFILL_FOR_OTHER = "prefill for other"
    """Its prompt is queued or computed here; another worker decodes."""
    READ = "read"
    """Its prompt is queued or computed here, and it has no answer."""
    SENDING = "sending"
    """Its prompt is computed; the KV is kept until another worker has it."""
    INCOMING = "incoming"
    """It will be decoded here when KV of another worker has arrived."""
    DECODE = "decode"
    ENDED = "ended"


_PROMPTS: Final = (TaskPhase.PREFILL, TaskPhase.PREFILL_FOR_OTHER, TaskPhase.READ)
_BEFORE_DECODE: Final = (TaskPhase.PROMISED, TaskPhase.PREFILL, TaskPhase.INCOMING)
_AFTER_PREFILL: Final = {TaskPhase.PREFILL: TaskPhase.DECODE, TaskPhase.PREFILL_FOR_OTHER: TaskPhase.SENDING}


class Task:
    """The work of one attempt on one worker. Calls after its end have no effect."""

    __slots__ = (
        "_load",
        "arrived_at",
        "blocks",
        "computed",
        "context_tokens",
        "images",
        "phase",
        "tokens",
        "uncached",
    )

    def __init__(
        self,
        load: WorkerLoad,
        tokens: int,
        cached: int,
        blocks: Sequence[BlockHash],
        arrived_at: float,
        images: ImageSpans = (),
    ) -> None:
        self._load = load
        self.tokens: Final = tokens
        """Whose KV the worker needs room for."""
        self.uncached: Final = tokens - cached
        """Prompt tokens outside the worker's prefix cache when the task began."""
        self.computed = cached
        """Prompt tokens with KV, as last reported."""
        self.context_tokens = tokens
        """Tokens of prompt and answer so far."""
        self.blocks: Final = blocks
        self.arrived_at: Final = arrived_at
        """When the request arrived at the router."""
        self.images: Final = images
        self.phase = TaskPhase.ENDED

    @property
    def image_tokens(self) -> int:
        """Tokens of images that the worker has yet to compute."""
        return image_tokens(self.images, self.computed) if self.images else 0

    def progressed(self, num_computed: int) -> None:
        """Prompt tokens [0, num_computed) are computed; more are left."""
        if self.phase in _PROMPTS:
            self.computed = min(max(num_computed, 0), self.tokens - 1)
            self._load.version += 1

    def produced(self, count: int) -> None:
        """The worker has computed `count` tokens of the answer."""
        if self.phase is not TaskPhase.DECODE and self.phase in _AFTER_PREFILL:
            self._load.change(self, _AFTER_PREFILL[self.phase])
        if self.phase is TaskPhase.DECODE:
            self.context_tokens += count
            self._load.context_tokens += count

    def arrived(self, context_tokens: int) -> None:
        """KV of another worker has arrived: an answer of this context is decoded here."""
        if self.phase is TaskPhase.INCOMING:
            self.context_tokens = context_tokens
            self._load.change(self, TaskPhase.DECODE)

    def end(self) -> bool:
        """The worker does not work for the attempt any more. False: it had ended before."""
        if self.phase is TaskPhase.ENDED:
            return False
        self._load.change(self, TaskPhase.ENDED)
        return True


@dataclass(slots=True)
class _Sum:
    tasks: int = 0
    tokens: int = 0


class WorkerLoad:
    """Tasks of a session, and the worker's last report.

    The tasks are exact and immediate, so a burst of requests is spread before the first report about it
    arrives. The report is up to 0.1 s old. It states how many commands it covers; pages of tasks sent after
    those are counted here until a report covers them. Every method costs O(1), except `prompts`.
    """

    def __init__(self, pages: RequestPages = ONE_TOKEN_PAGES, max_running: int = 0, router: str = "") -> None:
        """`pages`: that a request takes. `router`: the name of this router, whose part of a report is older
        than the tasks."""
        self._router = router
        self.pages: Final = pages
        self.page_size: Final = pages.page_size
        self.max_running: Final = max_running
        self.cached: Final = CachedPrefixes(self.page_size)
        self.given: Final = DecayingRate()
        """Prompt tokens to compute, without cached ones."""
        self.version = 0
        """Changes whenever something changes that placement looks at, except `context_tokens`."""
        self.requests = 0
        """Tasks for which a command was sent and that have not ended."""
        self.tokens = 0
        """Uncached prompt tokens of these requests when they were sent."""
        self.context_tokens = 0
        """Context tokens of all decodes."""
        self.idle: Final = asyncio.Event()
        """Set while `requests` is 0."""
        self.idle.set()
        self._sums = {phase: _Sum() for phase in TaskPhase}
        self._prompts: dict[Task, None] = {}
        self._reported = worker_pb2.Load()
        self.others = NOBODY
        """What other routers have the worker compute, as it last reported."""
        self._unseen: deque[tuple[int, int]] = deque()
        """(command number, pages) of tasks that no report covers yet."""
        self._unseen_pages = 0
        self._promised_pages = 0
        self._fresh_share = 1.0

    # ------------------------------------------------------------------------------ tasks

    def promise(self, tokens: int) -> Task:
        """Reserve room for a request that is about to be sent, until the task ends."""
        task = Task(self, tokens, 0, (), 0.0)
        self.change(task, TaskPhase.PROMISED)
        return task

    def begin(
        self,
        phase: TaskPhase,
        tokens: int,
        *,
        cached: int,
        blocks: Sequence[BlockHash] = (),
        arrived_at: float,
        now: float,
        images: ImageSpans = (),
    ) -> Task:
        """Begin a task of `tokens` tokens, of which the worker has `cached` in its prefix cache.

        `blocks`: the full pages of its prompt, for `cached.matching_tokens` while the task runs.
        """
        task = Task(self, tokens, cached, blocks, arrived_at, images)
        self.cached.expect(blocks)
        if phase in _PROMPTS:
            self.given.add(task.uncached, now)
        self.change(task, phase)
        return task

    def sent(self, command: int, task: Task) -> None:
        """The task was sent as command number `command` of the session."""
        pages = self.pages.of(task.tokens)
        self._unseen.append((command, pages))
        self._unseen_pages += pages
        self.version += 1

    def change(self, task: Task, phase: TaskPhase) -> None:
        """For `Task`: all that is counted changes here, but for the tokens of answers."""
        self._count(task, -1)
        if phase is TaskPhase.ENDED:
            self.cached.forget(task.blocks)
        task.phase = phase
        self._count(task, 1)
        self.version += 1
        if self.requests:
            self.idle.clear()
        else:
            self.idle.set()

    def _count(self, task: Task, sign: int) -> None:
        phase = task.phase
        if phase is TaskPhase.ENDED:
            return
        self._sums[phase].tasks += sign
        self._sums[phase].tokens += sign * (task.uncached if phase is TaskPhase.READ else task.tokens)
        if phase is TaskPhase.PROMISED:
            self._promised_pages += sign * self.pages.of(task.tokens)
            return
        self.requests += sign
        self.tokens += sign * task.uncached
        if phase is TaskPhase.DECODE:
            self.context_tokens += sign * task.context_tokens
        elif phase in _PROMPTS:
            if sign > 0:
                self._prompts[task] = None
            else:
                del self._prompts[task]

    # ------------------------------------------------------------------------------ reports

    def report(self, load: worker_pb2.Load, commands: int) -> None:
        """Take a report of the worker that covers the first `commands` commands of the session."""
        self.version += load != self._reported
        self._reported = load
        if (others := Others.of(load.routers, self._router)) != self.others:
            self.others = others
            self.version += 1
        while self._unseen and self._unseen[0][0] <= commands:
            self._unseen_pages -= self._unseen.popleft()[1]
            self.version += 1

    def reserved(self, pages: int, tokens: int) -> None:
        """Record that a request of `tokens` tokens reserved this many pages; the others were cached."""
        share = pages / max(self.pages.of(tokens), 1)
        self._fresh_share += _WEIGHT * (min(share, 1.0) - self._fresh_share)
        self.version += 1

    @property
    def running(self) -> int:
        """Requests being computed, as the worker last reported; those of other routers included."""
        return self._reported.running

    @property
    def waiting(self) -> int:
        """Requests queued at the worker, as it last reported."""
        return self._reported.waiting

    @property
    def waits_for(self) -> str:
        """Why the head of the worker's queue waits, as it last reported; empty: nothing waits."""
        return self._reported.waits_for

    @property
    def encode_tokens(self) -> int:
        """Prompt tokens of images that wait to be encoded for other workers, as last reported."""
        return self._reported.encode_tokens

    @property
    def available_pages(self) -> int | None:
        """Free or evictable pages, as last reported; None before the first report."""
        return self._reported.free_pages if self._reported.total_pages else None

    @property
    def draining(self) -> bool:
        """Whether a router drains the worker, as it last reported."""
        return self._reported.draining

    @property
    def updating(self) -> bool:
        """Whether it is drained because its weights are to be replaced, as it last reported."""
        return self._reported.updating

    @property
    def routers(self) -> list[str]:
        """Names of the routers that are connected to the worker, as it last reported."""
        return [load.router for load in self._reported.routers]

    @property
    def routers_with_ray(self) -> list[str]:
        """Routers among these that Ray answers."""
        return [load.router for load in self._reported.routers if not load.without_ray]

    # ------------------------------------------------------------------------------ views

    @property
    def prompts(self) -> Iterable[Task]:
        """Tasks whose prompts are queued or in progress, in order of arrival at the worker."""
        return self._prompts

    @property
    def queued_tokens(self) -> int:
        """Tokens of all waiting prompts, computed, cached and other routers' ones included; of reads, which
        come in hundreds with one beginning, those that are not cached."""
        return sum(self._sums[phase].tokens for phase in _PROMPTS) + self.others.queued_tokens

    @property
    def decodes(self) -> int:
        return self._sums[TaskPhase.DECODE].tasks

    @property
    def incoming(self) -> int:
        """Requests that will decode here, and whose prompts are queued or in progress on any worker."""
        return sum([self._sums[phase].tasks for phase in _BEFORE_DECODE])

    @property
    def incoming_tokens(self) -> int:
        """Tokens of the requests whose KV is on its way."""
        return sum([self._sums[phase].tokens for phase in _BEFORE_DECODE])

    def room(self) -> Room:
        """What the worker has room for now."""
        reported = self._reported
        promised = self._sums[TaskPhase.PROMISED].tasks + len(self._unseen)
        pages = self._promised_pages + self._unseen_pages
        return Room(
            pages=self.pages,
            max_running=self.max_running,
            total_pages=reported.total_pages,
            free_pages=reported.free_pages,
            quarantined_pages=reported.quarantined_pages,
            running=reported.running,
            starved=reported.starved,
            incoming=reported.incoming,
            queued_handoffs=reported.queued_handoffs,
            queued_pages=reported.queued_pages,
            promised=promised,
            promised_pages=round(pages * self._fresh_share) + promised,
            fresh_share=self._fresh_share,
        )
