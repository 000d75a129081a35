"""Runs sequences on the cluster: attempts, retries, deadlines, and the metrics of it all."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncGenerator
from collections.abc import Sequence as Tokens
from contextlib import aclosing
from typing import Final

from router.attempt import Attempt, DisaggAttempt, MixedAttempt, Pick
from router.backlog import Backlog
from router.config import Mode, RouterConfig
from router.dispatch_api import Delta
from router.errors import RouterError, Unavailable
from router.failures import AttemptFailed, out_of_time
from router.health import Trust
from router.metrics import RouterMetrics
from router.policies import policy_for
from router.registry import Registry
from router.sequence import Sequence
from router.session import WorkerSession
from router.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["ClusterDispatcher"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_RETRY_AFTER_S: Final = 5.0
"""What clients are told when no worker is there: a restarted one is back after about so long."""


class ClusterDispatcher:
    """Implements `dispatch_api.Dispatcher` for both modes."""

    def __init__(self, config: RouterConfig, registry: Registry, metrics: RouterMetrics) -> None:
        self._config = config
        self._registry = registry
        self._metrics = metrics
        self._roles = (ROLE_DECODE,) if config.mode is Mode.MIXED else (ROLE_PREFILL, ROLE_DECODE)
        self._policies = {role: policy_for(config.routing) for role in self._roles}
        self._backlog = Backlog(config.max_queued_tokens, config.max_queue_wait)
        metrics.watch_backlog(self._backlog)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    def ready(self) -> bool:
        return not self._draining and all(self._registry.ready(role) for role in self._roles)

    async def drain(self, timeout_s: float) -> int:
        """Refuses new sequences and lets the running ones finish; returns how many are left."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self._running

    async def generate(
        self,
        prompt: Tokens[int],
        sampling: sampling_pb2.Sampling,
        *,
        priority: int = 0,
        timeout_s: float = 0.0,
    ) -> AsyncGenerator[Delta, None]:
        """See `Dispatcher.generate`."""
        if self._draining:
            raise Unavailable("this router is shutting down")
        now = time.monotonic()
        sequence = Sequence(
            prompt=prompt,
            sampling=sampling,
            waterfall=Waterfall(now, self._metrics.inter_token.observe),
            priority=priority,
            deadline=now + timeout_s if timeout_s > 0 else math.inf,
        )
        self._enter()
        outcome = "abort"
        try:
            with self._backlog.enter(len(prompt), sequence.seconds_left()) as place:
                async with aclosing(self._with_retries(sequence)) as deltas:
                    async for delta in deltas:
                        place.served()
                        if delta.finish:
                            outcome = _OUTCOMES.get(delta.finish, "unknown")
                            delta.timings = sequence.waterfall.timings(time.monotonic())
                        yield delta
        except RouterError as error:
            outcome = error.code or "error"
            raise
        finally:
            self._leave()
            self._metrics.finished(sequence, outcome)

    def attempt(self, sequence: Sequence, pick: Pick) -> Attempt:
        """One try at a sequence, on the workers that `pick` names."""
        if self._config.mode is Mode.MIXED:
            return MixedAttempt(sequence, pick)
        return DisaggAttempt(sequence, pick, self._config.handoff_timeout)

    async def _with_retries(self, sequence: Sequence) -> AsyncGenerator[Delta, None]:
        """Deltas of as many attempts as it takes; the client sees one sequence."""
        if not self.ready():
            raise self._nobody_is_ready()
        avoid: set[str] = set()
        pause = _FIRST_PAUSE_S
        attempts_left = self._config.max_attempts
        while True:
            try:
                async with aclosing(self.attempt(sequence, self._picker(avoid)).deltas()) as deltas:
                    async for delta in deltas:
                        delta.cached_tokens = None if sequence.output else delta.cached_tokens
                        sequence.output.extend(delta.token_ids)
                        yield delta
            except AttemptFailed as failed:
                self._metrics.retried(failed)
                attempts_left -= not failed.planned
                if not attempts_left:
                    _log.warning("giving a request up: %s", failed)
                    raise failed.verdict from failed
                _log.info("trying a request again (%d attempts left): %s", attempts_left, failed)
                if failed.worker_id is not None:
                    avoid.add(failed.worker_id)
            else:
                return
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), sequence.seconds_left()))
            pause = min(pause * 4, _LONGEST_PAUSE_S)
            await self._wait_for_workers(sequence)

    def _picker(self, avoid: set[str]) -> Pick:
        def pick(role: worker_pb2.Role) -> WorkerSession:
            ready = self._registry.ready(role)
            if not ready:
                raise AttemptFailed("no worker is ready", None, self._nobody_is_ready())
            fine = [s for s in ready if s.worker_id not in avoid and s.health.trust is Trust.GOOD]
            return self._policies[role].pick(fine or ready)

        return pick

    async def _wait_for_workers(self, sequence: Sequence) -> None:
        """A worker that died is restarted: a request that it had waits for that, within its time."""
        patience = time.monotonic() + self._config.failover_timeout
        for role in self._roles:
            left = min(patience - time.monotonic(), sequence.seconds_left())
            if not await self._registry.wait_for(role, left):
                if not sequence.seconds_left():
                    raise out_of_time()
                raise self._nobody_is_ready()

    def _nobody_is_ready(self) -> Unavailable:
        troubles = "; ".join(self._registry.complaints())
        message = f"no worker can take the request now ({troubles})" if troubles else "no worker is ready"
        return Unavailable(message, retry_after_s=_RETRY_AFTER_S)

    def _enter(self) -> None:
        self._running += 1
        self._idle.clear()
        self._metrics.running.set(self._running)

    def _leave(self) -> None:
        self._running -= 1
        self._metrics.running.set(self._running)
        if not self._running:
            self._idle.set()


_OUTCOMES: Final = {
    int(sampling_pb2.FINISH_REASON_STOP): "stop",
    int(sampling_pb2.FINISH_REASON_LENGTH): "length",
    int(sampling_pb2.FINISH_REASON_ABORT): "abort",
}
