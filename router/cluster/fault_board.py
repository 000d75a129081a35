"""What the routers of a cluster tell each other about faults, so that each fault costs clients once only.

| what | the other routers |
| --- | --- |
| a request crashed workers | refuse it for as long: its client may retry through them |
| the probe of a worker failed | suspect this process of the worker, and so probe it themselves at once |

Kept in Ray, with the times at which it is over. A router reads it once a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from common.background import repeat
from router.cluster.record import ClusterRecord, OpenCircuits, PoisonEntry
from router.dispatch.admission.poison_requests import PoisonRequests
from router.dispatch.workers.liveness import CircuitState
from router.dispatch.workers.member import Member

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_STALE_S: Final = 10.0
"""After which the open circuits of a router that is gone are forgotten. Others repeat theirs every look, with
another time: it is this router's clock that counts."""


class WatchedWorkers(Protocol):
    """The part of `router.dispatch.workers.registry.Registry` that is used here."""

    @property
    def name(self) -> str: ...

    def members(self) -> Sequence[Member]: ...

    async def reconsider(self) -> None: ...


class FaultBoard:
    """Exchanges what this router knows with the others, while `run` runs."""

    def __init__(
        self,
        requests: PoisonRequests,
        workers: WatchedWorkers,
        ask: Callable[[Callable[[ClusterRecord], object]], Awaitable[object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`ask` calls a function with the record where it may block. `clock`: one that all routers share,
        within seconds."""
        self._requests = requests
        self._workers = workers
        self._ask = ask
        self._clock = clock
        self._new: list[PoisonEntry] = []
        self._told: tuple[tuple[str, int], ...] = ()
        self._heard: set[tuple[str, str, int]] = set()
        """Open circuits of other routers as of the last look: router, worker, epoch."""
        self._repeated: dict[str, tuple[float, float]] = {}
        """For each other router: the time that it gave last, and when this router saw it first."""
        requests.on_added = self._added

    def _added(self, key: bytes, sequence_id: str, seconds: float) -> None:
        self._new.append(PoisonEntry(key, sequence_id, self._clock() + seconds))

    async def run(self) -> None:
        """Exchange for ever. What Ray does not take stays for the next time."""
        await repeat(self.exchange, _LOOK_S, _log, "faults are not exchanged with other routers")

    async def exchange(self) -> None:
        """Raises what Ray raises."""
        poison: list[PoisonEntry] = []
        circuits: list[OpenCircuits] = []
        now = self._clock()
        mine = OpenCircuits(self._workers.name, now, self._open())

        def use(record: ClusterRecord) -> None:
            while self._new:
                record.keep_poison(self._new[0])
                self._new.pop(0)
            poison.extend(record.poison())
            for entry in poison:
                if entry.until <= now:
                    record.forget_poison(entry)
            if mine.workers or self._told:
                record.keep_open_circuits(mine)
            found = [others for others in record.open_circuits() if others.router != mine.router]
            self._repeated = {others.router: self._first_seen(others, now) for others in found}
            for others in found:
                if self._repeated[others.router][1] <= now - _STALE_S:
                    record.forget_open_circuits(others.router)
                else:
                    circuits.append(others)

        await self._ask(use)
        self._told = mine.workers
        for entry in poison:
            if (left := entry.until - now) > 0:
                self._requests.learn(entry.key, entry.sequence_id, left)
        await self._suspect(circuits)

    def _first_seen(self, others: OpenCircuits, now: float) -> tuple[float, float]:
        before = self._repeated.get(others.router)
        return before if before is not None and before[0] == others.at else (others.at, now)

    def _open(self) -> tuple[tuple[str, int], ...]:
        return tuple(
            (member.handle.worker_id, member.epoch)
            for member in self._workers.members()
            if member.epoch is not None and member.breaker.state is CircuitState.OPEN
        )

    async def _suspect(self, circuits: Sequence[OpenCircuits]) -> None:
        """Once for each circuit: after that, the own probes decide."""
        heard = {(others.router, *worker) for others in circuits for worker in others.workers}
        news = {(worker, epoch) for _, worker, epoch in heard - self._heard}
        self._heard = heard
        for member in self._workers.members():
            if (member.handle.worker_id, member.epoch) in news and member.breaker.doubt():
                _log.warning("%s is suspect: it failed a probe of another router", member.handle.worker_id)
        if news:
            await self._workers.reconsider()
