"""Running attempts, and moving their answers off a worker that is drained."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from router.dispatch.adapters.table import Digest
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.failures import withdrawn
from router.dispatch.workers.session import WorkerSession

_MAX_CONCURRENT: Final = 8
"""Concurrent moves: they share the link's bandwidth, and each holds pages at its target."""

_MIGRATION_S: Final = 10.0
"""Timeout of one move; most take milliseconds."""

FindTarget: TypeAlias = Callable[[int, str, Digest, str], WorkerSession | None]
"""See `Selector.migration_target`."""


class RunningAttempts:
    """The running attempts of a dispatcher."""

    def __init__(self, migration_target: FindTarget) -> None:
        self._find_target = migration_target
        self._running: dict[Attempt, None] = {}
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def running(self, attempt: Attempt) -> Iterator[None]:
        self._running[attempt] = None
        self._none.clear()
        try:
            yield
        finally:
            del self._running[attempt]
            if not self._running:
                self._none.set()

    async def withdraw_all(self) -> None:
        """Have other attempts go on after the tokens that have come. Returns when these have ended; none may
        begin meanwhile.
        """
        for attempt in list(self._running):
            attempt.fail(withdrawn())
        await self._none.wait()

    async def migrate_from(self, worker_id: str, timeout_s: float) -> int:
        """Move a worker's running answers to other workers with room; returns how many have moved.

        Takes `timeout_s` at most. An answer that did not move by then, or whose move failed, stays.
        """
        semaphore, loop = asyncio.Semaphore(_MAX_CONCURRENT), asyncio.get_running_loop()
        ends = loop.time() + timeout_s

        async def migrate(attempt: Attempt) -> bool:
            async with semaphore:
                return await self.migrate(attempt, worker_id, ends - loop.time())

        return sum(await asyncio.gather(*(migrate(attempt) for attempt in list(self._running))))

    async def migrate(self, attempt: Attempt, worker_id: str, timeout_s: float = _MIGRATION_S) -> bool:
        """Move an answer from this worker to another one with its KV; returns whether it has moved."""
        decoder = attempt.decoder
        if attempt not in self._running or decoder is None or decoder.worker_id != worker_id:
            return False
        target = self._find_target(attempt.tokens_to_reserve, worker_id, attempt.adapter, attempt.weights)
        return (
            target is not None
            and timeout_s > 0
            and await attempt.migrate(target, min(_MIGRATION_S, timeout_s))
        )

    def on(self, worker_id: str) -> list[Attempt]:
        """Attempts of which the worker may hold state, those that have begun first at the beginning."""
        return [attempt for attempt in self._running if attempt.uses(worker_id)]
