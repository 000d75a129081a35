"""Moves running answers off a worker that is to leave, or that others should relieve."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from router.workers.session import WorkerSession

__all__ = ["DRAIN", "AnswerProgress", "Answers", "Movable", "Refuge"]

DRAIN: Final = "drain"
"""Reason of a move: the worker is to leave."""

_AT_ONCE: Final = 8
"""Moves at a time: each takes a share of the link, and the pages of all are promised at their targets."""

_MOVE_S: Final = 10.0
"""Timeout of one move; most take milliseconds."""

Refuge: TypeAlias = Callable[[int, str], WorkerSession | None]
"""See `Placing.refuge`."""


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    context_tokens: int
    """Of the prompt, and of the answer so far."""
    output_tokens: int
    max_tokens: int


class Movable(Protocol):
    """A running attempt; see `Attempt`."""

    @property
    def writer(self) -> WorkerSession | None: ...

    @property
    def tokens_to_reserve(self) -> int: ...

    @property
    def progress(self) -> AnswerProgress: ...

    async def move(self, session: WorkerSession, timeout_s: float, reason: str = DRAIN) -> bool: ...


class Answers:
    """The attempts that run now."""

    def __init__(self, refuge: Refuge) -> None:
        self._refuge = refuge
        self._running: dict[Movable, None] = {}

    @contextmanager
    def running(self, attempt: Movable) -> Iterator[None]:
        self._running[attempt] = None
        try:
            yield
        finally:
            del self._running[attempt]

    def now(self) -> list[Movable]:
        """Those that run."""
        return list(self._running)

    async def evacuate(self, worker_id: str, timeout_s: float) -> int:
        """Moves the answers that this worker computes now to others that have room; returns how many moved.

        Takes `timeout_s` at most. An answer that did not move by then, or whose move failed, stays.
        """
        turn, loop = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop()
        ends = loop.time() + timeout_s

        async def evacuate(attempt: Movable) -> bool:
            async with turn:
                writer, left = attempt.writer, ends - loop.time()
                if attempt not in self._running or writer is None or writer.worker_id != worker_id:
                    return False
                target = self._refuge(attempt.tokens_to_reserve, worker_id)
                return target is not None and left > 0 and await attempt.move(target, min(_MOVE_S, left))

        return sum(await asyncio.gather(*(evacuate(attempt) for attempt in list(self._running))))
