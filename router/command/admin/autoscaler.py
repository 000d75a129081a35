"""Lets the number of workers follow the load (`--autoscale`), in the way of `router scale`.

Every router looks once a second; the one that leads decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from common.background import repeat
from engine.sched.chunk_size.step_targets import longest_step_s
from router.command.admin.scaling import Scaling
from router.command.admin.scaling_policy import Pressure, ScalingPolicy
from router.config.flags.text_settings import bounds_of
from router.config.settings import RouterConfig
from router.dispatch.admission.prefill_queue import PrefillQueue
from router.dispatch.metrics.recent import QuantileWindow, Recent
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from worker.config import WorkerRole

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_FULL: Final = 0.8
"""Share of KV or slots in use above which a burst would wait."""
_LATE: Final = 1.25
"""Factor of the ITL target above which it is missed: the scheduler fills steps up to the target."""
_LEVEL: Final = 0.9
_ENOUGH: Final = 10
"""Samples in the window of a latency before it counts."""
_ITL_TARGET_MS: Final = 100.0
"""If none is given."""


class LoadReader:
    """Reads the pressure on each role from what this router knows."""

    def __init__(
        self,
        config: RouterConfig,
        registry: Registry,
        queue: PrefillQueue,
        recent: Recent,
        running: Callable[[], int],
        lone_decode_s: Callable[[], float],
    ) -> None:
        """`running`: requests of this router; `lone_decode_s`: the time of a step that computes one token of
        one answer, which more workers do not make shorter."""
        self._registry = registry
        self._queue = queue
        self._recent = recent
        self._running = running
        self._ttft_s = config.ttft_target_ms / 1e3
        self._lone_decode_s = lone_decode_s
        self._itl_s = (config.itl_target_ms or _ITL_TARGET_MS) / 1e3
        self._prefills = WorkerRole.PREFILL if config.uses_handoffs else WorkerRole.DECODE

    def read(self, role: WorkerRole) -> Pressure:
        """Queue and TTFT press on the workers that prefill, KV and ITL on those that decode."""
        requests = self._running() + sum(s.load.others.requests for s in self._registry.sessions())
        prefills, decodes = role is self._prefills, role is WorkerRole.DECODE
        return Pressure(
            queue=self._queue.wait_s() / self._ttft_s if prefills else 0.0,
            ttft=self._latency(self._recent.ttft) / self._ttft_s if prefills else 0.0,
            itl=self._latency(self._recent.itl) / self._longest_itl_s() if decodes else 0.0,
            room=self._used() / _FULL if decodes else 0.0,
            requests=requests,
        )

    def _longest_itl_s(self) -> float:
        """Above what the scheduler makes of the target with the fewest answers for each worker."""
        return _LATE * longest_step_s(self._itl_s, self._lone_decode_s())

    def _latency(self, window: QuantileWindow) -> float:
        """Latency of most requests of the window; 0 if there are too few."""
        now = time.monotonic()
        found = window.quantiles([_LEVEL], now)
        return found[0] if found is not None and window.count(now) >= _ENOUGH else 0.0

    def _used(self) -> float:
        """Mean share of KV or slots in use, of the workers that decode; above 1 if requests wait for room."""
        shares = [
            _share(session)
            for member in self._registry.members()
            if member.usable and (session := member.session) is not None and member.role_name == "decode"
        ]
        if not shares:
            return 0.0
        mean = sum(shares) / len(shares)
        return max(mean, 1.0) + self._queue.held_back / len(shares) if self._queue.held_back else mean


def _share(session: WorkerSession) -> float:
    room = session.load.room()
    pages = 1.0 - room.free_pages / room.total_pages if room.total_pages else 0.0
    active = room.running + room.incoming + room.queued_handoffs + room.starved
    return max(pages, active / room.max_running if room.max_running else 0.0)


class Autoscaler:
    """Scales the roles that `--autoscale` bounds, while `run` runs."""

    def __init__(
        self,
        config: RouterConfig,
        scaling: Scaling,
        read: Callable[[WorkerRole], Pressure],
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        bounds = bounds_of(config.cluster.autoscale)
        self._policies: Mapping[WorkerRole, ScalingPolicy] = {
            WorkerRole(role): ScalingPolicy(own, config.cluster.autoscale_cooldown)
            for role, own in bounds.items()
        }
        self._scaling = scaling
        self._read = read
        self._leads = leads
        self._clock = clock

    async def run(self) -> None:
        """Look for ever; the same refusal is logged once."""
        await repeat(self.look, _LOOK_S, _log, "the number of workers cannot follow the load")

    async def look(self) -> None:
        """Decide once. Raises CannotScale, and what Ray raises."""
        if not self._scaling.has_looked:
            return
        for role, policy in self._policies.items():
            desired, ready = self._scaling.desired(role), self._scaling.ready(role)
            decision = policy.decide(self._read(role), desired, ready, self._clock())
            if decision is not None and self._leads():
                _log.info(
                    "%s workers: %d instead of %d: %s", role.value, decision.number, desired, decision.why
                )
                await self._scaling.request(role, decision.number)
