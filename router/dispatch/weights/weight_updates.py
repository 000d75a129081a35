"""Pauses of a model, and updates of its weights: one call for all of its workers.

An update is done on every worker, or undone on those that have it: then the old weights go on serving. A
worker that connects later, or was restarted, is given the weights of the last update before it gets requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.workers.every_worker import NotEverywhere, WorkerRefused, on_every_worker
from router.dispatch.workers.member import WorkerUnavailable
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import InvalidRequest, Unavailable
from rpc.baton.v1 import worker_pb2

_log = logging.getLogger(__name__)

_LEFT_S: Final = 60.0
"""For a worker's last requests, and pages that may still be written."""
_CLEARED: Final = ("pool", "host", "disk", "object")


class UpdateFailed(Unavailable):
    """Not every worker has taken the weights; the message says which, and why. The old ones go on serving."""

    default_code = "update_failed"


class WeightUpdates:
    """Pauses and updates of one model by one router, one at a time."""

    def __init__(
        self, registry: Registry, dispatcher: ClusterDispatcher, abort_all: Callable[[], None]
    ) -> None:
        """`abort_all`: finishes every running request with the tokens that it has."""
        self.served = worker_pb2.ServedWeights()
        """The same on all workers; without a digest before the first update."""
        self._registry = registry
        self._dispatcher = dispatcher
        self._abort_all = abort_all
        self._changing = asyncio.Lock()
        self._updating = asyncio.Lock()
        """Held while workers have different weights."""
        registry.prepare = self._catch_up
        for session in registry.sessions():
            self._join(session)

    @property
    def is_paused(self) -> bool:
        return self._dispatcher.gate.mode is not None

    def workers(self) -> dict[str, worker_pb2.ServedWeights]:
        """What each worker that is connected has."""
        return {session.worker_id: session.info.served for session in self._registry.sessions()}

    async def pause(self, mode: PauseMode) -> None:
        """Returns when no worker has requests to compute."""
        async with self._changing:
            await self._pause(mode)

    def resume(self) -> None:
        """No effect if it is not paused. Raises InvalidRequest during an update."""
        if self._changing.locked():
            raise InvalidRequest("The service is being paused or updated: resume it after that.", code="busy")
        self._dispatcher.resume()

    async def update(
        self, folder: str, version: str = "", mode: PauseMode = PauseMode.KEEP
    ) -> worker_pb2.ServedWeights:
        """Replace the weights of all workers by those of `folder`, which each has on its own disk.

        Pauses the model meanwhile, in `mode`, unless it is paused, and stays so. Raises UpdateFailed, and
        InvalidRequest with other routers, which would not know of it.
        """
        if others := self._registry.other_routers():
            raise InvalidRequest(
                f"{', '.join(others)} uses these workers too: weights are updated with one router.",
                code="several_routers",
            )
        if not folder:
            raise InvalidRequest("The folder of the weights is missing.", code="missing_required_parameter")
        async with self._changing:
            was_paused, began = self.is_paused, time.monotonic()
            if not was_paused:
                await self._pause(mode)
            try:
                new = worker_pb2.ServedWeights(tag=secrets.token_hex(8), folder=folder, version=version)
                async with self._updating:
                    self._adopt(await self._everywhere(new))
            finally:
                if not was_paused:
                    self._dispatcher.resume()
            _log.info(
                "weights of %s, version %r, digest %s: on every worker, in %.1f s",
                folder,
                version,
                self.served.digest,
                time.monotonic() - began,
            )
            return self.served

    async def reset_caches(self) -> None:
        """Drop all cached KV that no request reads, of all tiers. Raises UpdateFailed."""
        request = worker_pb2.ManageCacheRequest(clear=_CLEARED)
        try:
            await on_every_worker(self._registry.members(), lambda session: session.manage_cache(request))
        except NotEverywhere as error:
            raise UpdateFailed(f"The caches are not cleared everywhere: {error}", public=True) from None

    async def _pause(self, mode: PauseMode) -> None:
        await self._dispatcher.pause(mode, self._abort_all)

    def _adopt(self, served: worker_pb2.ServedWeights) -> None:
        self.served = worker_pb2.ServedWeights()
        self.served.CopyFrom(served)
        self._dispatcher.gate.weights = served.tag

    def _join(self, session: WorkerSession) -> None:
        """Take over what an earlier router has updated."""
        if session.info.served.tag and not self.served.tag:
            self._adopt(session.info.served)

    async def _everywhere(self, new: worker_pb2.ServedWeights) -> worker_pb2.ServedWeights:
        """Raises UpdateFailed, after all workers that can have the old weights again."""
        members = self._registry.members()
        try:
            answers = await on_every_worker(members, partial(_update, weights=new))
        except NotEverywhere as error:
            await self._back(new)
            raise UpdateFailed(f"The weights are not updated: {error}", public=True) from None
        if not answers:
            raise UpdateFailed("No worker is connected.", public=True)
        digests = {served.digest for served in answers.values()}
        if len(digests) > 1:
            await self._back(new)
            found = ", ".join(f"{worker}: {served.digest}" for worker, served in answers.items())
            raise UpdateFailed(f"The workers have read different weights ({found}).", public=True)
        return next(iter(answers.values()))

    async def _back(self, new: worker_pb2.ServedWeights) -> None:
        """Give the old weights to all workers that have them no more."""
        try:
            await on_every_worker(self._registry.members(), partial(_update, weights=self.served))
        except NotEverywhere as error:
            _log.error("not all workers have their old weights again after %s: %s", new.folder, error)

    async def _catch_up(self, session: WorkerSession) -> None:
        """Give a worker that connects the weights of all others. Raises WorkerUnavailable, RpcError."""
        self._join(session)
        async with self._updating:
            if session.info.served.tag != self.served.tag:
                try:
                    await _update(session, self.served)
                except WorkerRefused as error:
                    raise WorkerUnavailable(f"it does not take the weights of the others: {error}") from None


async def _update(session: WorkerSession, weights: worker_pb2.ServedWeights) -> worker_pb2.ServedWeights:
    """Raises WorkerRefused, RpcError."""
    request = worker_pb2.UpdateWeightsRequest(weights=weights, timeout_s=_LEFT_S)
    report = await session.update_weights(request)
    if report.refused:
        raise WorkerRefused(report.refused)
    return report.weights
