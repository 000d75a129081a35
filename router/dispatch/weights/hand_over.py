"""Hands over the answers of a worker whose weights are to be replaced, while it still computes them.

An answer moves with its KV if another worker has the same weights and a KV transport. Otherwise another
worker computes the KV of prompt and answer so far ahead, with its own weights, in chunks beside its decodes.
Only then the answer ends where it is, and goes on there: what is left to compute are the tokens since. Few
answers are handed over at a time, so that they do not queue behind each other.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final

from common.background import repeat
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.failures import AttemptFailed, handed_over
from router.dispatch.routing.selector import Selector
from router.dispatch.running_attempts import RunningAttempts
from router.dispatch.sequence import SequenceState
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import RouterError

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 2
"""Answers handed over at a time to each other worker: one is computed while the next is on its way."""
_AHEAD_S: Final = 10.0
_AGAIN_S: Final = 0.05


class HandOver:
    """Hands over the answers of this router; others do so for the same worker."""

    def __init__(self, registry: Registry, answers: RunningAttempts, selector: Selector) -> None:
        self._registry = registry
        self._answers = answers
        self._selector = selector

    async def follow(self) -> None:
        """Leave the workers that report an update of their weights, for ever."""
        await repeat(self._next, 0.0, _log, "answers are not handed over")

    async def _next(self) -> None:
        await self._registry.wait_until(lambda: bool(self._updating()), math.inf)
        for session in self._updating():
            _log.info("%s is to get other weights: others go on with its answers", session.worker_id)
            while session.alive and session.load.updating:
                await self.leave(session.worker_id)
                await asyncio.sleep(_AGAIN_S)

    def _updating(self) -> list[WorkerSession]:
        return [session for session in self._registry.sessions() if session.load.updating]

    async def leave(self, worker_id: str) -> None:
        """Have others go on with all that this worker computes, answers before prompts."""
        others = sum(member.usable for member in self._registry.members())
        turns = asyncio.Semaphore(_AT_ONCE * max(others, 1))

        async def hand_over(attempt: Attempt) -> None:
            async with turns:
                if self._selector.is_ready(attempt.adapter):
                    await self._hand_over(attempt, worker_id)

        found = sorted(self._answers.on(worker_id), key=lambda attempt: not attempt.sequence.output)
        await asyncio.gather(*map(hand_over, found))

    async def _hand_over(self, attempt: Attempt, worker_id: str) -> None:
        if await self._answers.migrate(attempt, worker_id):
            return
        if attempt.sequence.output:
            await self._compute_ahead(attempt.sequence.ahead(), worker_id)
        if attempt.uses(worker_id):
            attempt.fail(handed_over(worker_id))

    async def _compute_ahead(self, read: SequenceState, leaving: str) -> None:
        """If it fails, the next attempt computes all of it."""
        tag = self._selector.version_for(read)
        read.use_weights(tag, self._selector.versions[tag])
        try:
            route = self._selector.route(read, {leaving}, as_answer=True)
            if route is not None:
                async with asyncio.timeout(_AHEAD_S):
                    await MixedAttempt(read, route).run()
        except (TimeoutError, AttemptFailed, RouterError) as error:
            _log.debug("%s is not computed ahead: %s", read.id, error)
