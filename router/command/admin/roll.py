"""Restarts, one by one, the workers that were started with other settings than this router's."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from common.background import repeat
from router.command.admin.drain import LastWorker, NotBackInTime, OperationFailed, WorkerDrainer
from router.dispatch.workers.member import Member
from router.dispatch.workers.registry import Registry

_log = logging.getLogger(__name__)

_ASK_S: Final = 1.0
_FINAL: Final = (LastWorker, NotBackInTime, OperationFailed)
"""Errors after which no further worker is restarted."""


class RollableWorkers(Protocol):
    """The workers of the cluster as Ray has them, also those without a session. Raises what Ray raises."""

    async def routers(self, worker_ids: Collection[str]) -> Collection[str]:
        """The routers that are connected to these workers."""
        ...


class Roll:
    """One pass over the workers that the router has found at its start.

    A worker that can serve with its old settings does so until its turn, and its answers move to others.
    Those that cannot (another model, KV layout or version) are restarted together, unless routers of that
    kind use them: then one by one too, and once this router serves, the last one stays until they have ended.
    """

    def __init__(
        self,
        registry: Registry,
        drainer: WorkerDrainer,
        workers: RollableWorkers,
        *,
        drain_timeout_s: float,
        startup_timeout_s: float,
    ) -> None:
        self._registry = registry
        self._drainer = drainer
        self._workers = workers
        self._drain_timeout_s = drain_timeout_s
        self._startup_timeout_s = startup_timeout_s

    async def run(self) -> None:
        """Return when every worker has this router's settings, or at the first that does not come back.

        The others then keep their settings, so settings that do not work take one worker out of service.
        """
        try:
            await repeat(
                self._restart_all,
                _ASK_S,
                _log,
                "workers with other settings are not restarted yet",
                until=self._is_done,
                final=_FINAL,
            )
        except _FINAL as error:
            _log.error("%s; workers that were not restarted yet keep their settings", error)

    async def _restart_all(self) -> None:
        """Return when all are restarted, or when those that are left have to stay for now."""
        while True:
            await self._registry.wait_until(lambda: bool(self._outdated()) or self._is_done(), math.inf)
            batch = await self._batch(self._outdated())
            if not batch:
                return
            await asyncio.gather(*(self._restart(member) for member in batch))

    async def _batch(self, outdated: Sequence[Member]) -> Sequence[Member]:
        """Select what is restarted next; empty while the last worker usable by other routers has to stay."""
        in_service = any(member.usable for member in self._registry.members())
        foreign = [member for member in outdated if member.session is None]
        if not foreign:
            return outdated[:1]
        if in_service and len(foreign) > 1:
            return foreign[:1]
        users = await self._workers.routers([member.handle.worker_id for member in foreign])
        if not in_service:
            return foreign[:1] if users else foreign
        if users:
            _log.debug("%s stays for %s", foreign[0].handle.worker_id, ", ".join(users))
            return []
        return foreign

    async def _restart(self, member: Member) -> None:
        worker_id = member.handle.worker_id
        _log.info("%s was started with other settings or code, and is restarted", worker_id)
        await self._drainer.restart(
            worker_id, self._drain_timeout_s, self._startup_timeout_s, force=self._is_last(member)
        )

    def _is_last(self, member: Member) -> bool:
        return not any(other.usable for other in self._registry.members() if other is not member)

    def _outdated(self) -> list[Member]:
        """Outdated workers; those that cannot serve come first."""
        outdated = [m for m in self._registry.members() if m.is_outdated and not m.is_stopped]
        return sorted(outdated, key=lambda member: member.usable)

    def _is_done(self) -> bool:
        return self._registry.all_ready() and not self._outdated()
