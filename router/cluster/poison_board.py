"""Requests that crashed workers, known to all routers of a cluster: a client may retry through another one.

Kept in Ray, each with the time at which it is over. A router reads them once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from router.cluster.record import ClusterRecord, PoisonEntry
from router.dispatch.admission.poison_requests import PoisonRequests

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


class PoisonBoard:
    """Exchanges the poison requests of this router with those of the others, while `run` runs."""

    def __init__(
        self,
        requests: PoisonRequests,
        ask: Callable[[Callable[[ClusterRecord], object]], Awaitable[object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`ask` calls a function with the record where it may block. `clock`: one that all routers share,
        within seconds."""
        self._requests = requests
        self._ask = ask
        self._clock = clock
        self._new: list[PoisonEntry] = []
        requests.on_added = self._added

    def _added(self, key: bytes, sequence_id: str, seconds: float) -> None:
        self._new.append(PoisonEntry(key, sequence_id, self._clock() + seconds))

    async def run(self) -> None:
        """Exchange for ever. What Ray does not take stays for the next time."""
        while True:
            try:
                await self.exchange()
            except Exception as error:  # Ray's errors share no base class
                _log.debug("poison requests are not exchanged: %s", error)
            await asyncio.sleep(_LOOK_S)

    async def exchange(self) -> None:
        """Raises what Ray raises."""
        found: list[PoisonEntry] = []

        def use(record: ClusterRecord) -> None:
            while self._new:
                record.keep_poison(self._new[0])
                self._new.pop(0)
            found.extend(record.poison())
            for entry in found:
                if entry.until <= self._clock():
                    record.forget_poison(entry)

        await self._ask(use)
        for entry in found:
            if (left := entry.until - self._clock()) > 0:
                self._requests.learn(entry.key, entry.sequence_id, left)
