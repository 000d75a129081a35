"""Pauses of a model, and updates of its weights: one call for all of its workers.

An update is done on every worker, or undone on those that have it: then the old weights go on serving. It is
done on one worker after another while the others serve (`rolling`), or on all of them at once in a pause
(`together`). A worker that connects later, or was restarted, is given the weights of the last update before
it gets requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from common.background import supervised
from router.config.choices import UpdateMode
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.routing.selector import FIRST_VERSION
from router.dispatch.weights.rolling import Phase, Rolling, Updatable
from router.dispatch.workers.every_worker import NotEverywhere, WorkerRefused, on_every_worker
from router.dispatch.workers.member import WorkerUnavailable
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import InvalidRequest, Unavailable
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_log = logging.getLogger(__name__)

_LEFT_S: Final = 60.0
"""For a worker's last requests, and pages that may still be written."""
_MOVE_S: Final = 5.0
"""For the answers of a worker that is updated to move to others with its weights."""
_GONE_S: Final = 5.0
"""For news of a worker that has been updated, or has ended."""
_TWO: Final = 2
"""Workers of which one serves while the other is updated."""
_CLEARED: Final = ("pool", "host", "disk", "object")


class UpdateFailed(Unavailable):
    """Not every worker has taken the weights; the message says which, and why. The old ones go on serving."""

    default_code = "update_failed"


class UpdateDone(NamedTuple):
    served: worker_pb2.ServedWeights
    how: UpdateMode
    paused: bool
    """Whether requests waited meanwhile."""


class WeightUpdates:
    """Pauses and updates of one model by one router, one at a time."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: ClusterDispatcher,
        abort_all: Callable[[], None],
        how: UpdateMode = UpdateMode.ROLLING,
    ) -> None:
        """`abort_all`: finishes every running request with the tokens that it has. `how`: see `update`."""
        self._how = how
        self.served = worker_pb2.ServedWeights()
        """The same on all workers; without a digest before the first update."""
        self._known: dict[str, worker_pb2.ServedWeights] = {}
        """All that requests were computed with, by tag."""
        self._registry = registry
        self._dispatcher = dispatcher
        self._abort_all = abort_all
        self._changing = asyncio.Lock()
        self._updating = asyncio.Lock()
        """Held while workers have different weights."""
        self._verified: worker_pb2.ServedWeights | None = None
        """What a worker has taken in an update that goes on, one worker after another."""
        registry.prepare = self._catch_up
        for session in registry.sessions():
            self._join(session)

    @property
    def is_paused(self) -> bool:
        return self._dispatcher.gate.mode is not None

    def of_tag(self, tag: str) -> worker_pb2.ServedWeights:
        """Weights by the tag of the update; its digest is empty if the workers do not tell theirs."""
        return self._known.get(tag) or worker_pb2.ServedWeights(tag=tag)

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
        self,
        folder: str,
        version: str = "",
        mode: PauseMode = PauseMode.KEEP,
        how: UpdateMode | None = None,
    ) -> UpdateDone:
        """Replace the weights of all workers by those of `folder`, which each has on its own disk.

        `version`: its name; "": one is made. `how`: None: as configured. Together, it pauses the model
        meanwhile, in `mode`, unless it is paused, and stays so; so it is done if only one worker is
        connected, or the model is paused. Raises UpdateFailed, and InvalidRequest with other routers, which
        would not know of it.
        """
        if others := self._registry.other_routers():
            raise InvalidRequest(
                f"{', '.join(others)} uses these workers too: weights are updated with one router.",
                code="several_routers",
            )
        if not folder:
            raise InvalidRequest("The folder of the weights is missing.", code="missing_required_parameter")
        tag = secrets.token_hex(8)
        new = worker_pb2.ServedWeights(tag=tag, folder=folder, version=version or tag)
        self._known[tag] = new  # whose digest follows
        # A client that leaves does not end an update half-way.
        return await asyncio.shield(supervised(self._update(new, mode, how or self._how), "update"))

    async def _update(self, new: worker_pb2.ServedWeights, mode: PauseMode, how: UpdateMode) -> UpdateDone:
        async with self._changing:
            began = time.monotonic()
            if self.is_paused or len(self._registry.sessions()) < _TWO:
                how = UpdateMode.TOGETHER
            if how is UpdateMode.ROLLING:
                paused = await self._roll(new, mode)
            else:
                paused = await self._together(new, mode)
            _log.info(
                "weights of %s, version %r, digest %s: on every worker, %s, in %.1f s",
                new.folder,
                new.version,
                self.served.digest,
                how.value,
                time.monotonic() - began,
            )
            return UpdateDone(self.served, how, paused)

    async def _together(self, new: worker_pb2.ServedWeights, mode: PauseMode) -> bool:
        """Returns whether the model was paused for it. Raises UpdateFailed."""
        if not (was_paused := self.is_paused):
            await self._pause(mode)
        try:
            async with self._updating:
                self._adopt(await self._everywhere(new))
        finally:
            if not was_paused:
                self._dispatcher.resume()
            await self._registry.reconsider()
        return not was_paused

    async def _roll(self, new: worker_pb2.ServedWeights, mode: PauseMode) -> bool:
        """Returns whether no worker served for a moment. Raises UpdateFailed."""
        if mode is PauseMode.ABORT:
            self._abort_all()
        rolling = Rolling(self.served.tag, new.tag)
        try:
            while True:
                self._serve(rolling.versions, new)
                await self._registry.reconsider()
                chosen = rolling.next(self._updatable())
                if chosen is None:
                    break
                weights = new if rolling.target == new.tag else self.served
                await self._update_one(rolling, chosen.id, weights)
                new.digest = rolling.digest
                self._verified = new if new.digest and rolling.phase is Phase.FORWARD else None
        finally:
            self._verified = None
        self._serve(rolling.versions, new)
        if rolling.phase is Phase.FAILED:
            raise UpdateFailed(_failure(rolling), public=True)
        self._adopt(new)
        await self._registry.reconsider()
        return bool(rolling.alone)

    def _updatable(self) -> list[Updatable]:
        return [
            Updatable(session.worker_id, session.role, session.info.served.tag)
            for session in self._registry.sessions()
        ]

    async def _update_one(self, rolling: Rolling, worker: str, weights: worker_pb2.ServedWeights) -> None:
        """Returns when the worker serves again, or was lost."""
        (member,) = (one for one in self._registry.members() if one.handle.worker_id == worker)
        if (session := member.session) is None:
            return
        tag = session.info.served.tag
        peers = [one for one in self._updatable() if one.tag == tag and one.id != worker]
        moves = session.info.transport and peers
        try:
            digest = (await _update(session, weights, leave_s=_MOVE_S if moves else 0.0)).digest
        except WorkerRefused as error:
            rolling.refused(worker, str(error))
        except RpcError as error:
            if await self._registry.wait_until(lambda: not session.alive, _GONE_S):
                rolling.lost(worker)
            else:
                rolling.refused(worker, error.details or error.code.name)
        else:
            rolling.updated(worker, digest)
        await self._registry.wait_until(lambda: member.usable or not session.alive, _GONE_S)

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
        self._known[served.tag] = self.served
        self._serve((served.tag,), served)

    def _serve(self, tags: Sequence[str], new: worker_pb2.ServedWeights) -> None:
        """Have requests computed with these weights, the first ones by preference."""
        versions = {self.served.tag: version_of(self.served), new.tag: version_of(new)}
        self._dispatcher.serve({tag: versions[tag] for tag in tags})

    def _join(self, session: WorkerSession) -> None:
        """Take over what an earlier router has updated."""
        if not session.info.served.tag:
            self._known[""] = worker_pb2.ServedWeights(digest=session.info.weights)
        if session.info.served.digest and not self.served.tag:
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
            if session.info.served.tag not in self._dispatcher.versions:
                try:
                    await _update(session, self._wanted())
                except WorkerRefused as error:
                    raise WorkerUnavailable(f"it does not take the weights of the others: {error}") from None

    def _wanted(self) -> worker_pb2.ServedWeights:
        """Weights for a worker that has none of those that requests may have."""
        return self.served if self._verified is None else self._verified


def version_of(served: worker_pb2.ServedWeights) -> str:
    """The name that clients know."""
    return served.version or FIRST_VERSION


async def _update(
    session: WorkerSession, weights: worker_pb2.ServedWeights, leave_s: float | None = None
) -> worker_pb2.ServedWeights:
    """`leave_s`: see `UpdateWeightsRequest`. Raises WorkerRefused, RpcError."""
    request = worker_pb2.UpdateWeightsRequest(weights=weights, timeout_s=_LEFT_S, leave_s=leave_s)
    report = await session.update_weights(request)
    if report.incomplete or not report.refused:
        session.info.served.CopyFrom(report.weights)
    if report.refused:
        raise WorkerRefused(report.refused)
    return report.weights


def _failure(rolling: Rolling) -> str:
    """What became of an update that has failed."""
    why = "; ".join(f"{worker}: {reason}" for worker, reason in rolling.reasons.items())
    left_out = "; ".join(f"{worker}: {reason}" for worker, reason in rolling.left_out.items())
    suffix = f" Without requests until they are restarted, or updated: {left_out}." if left_out else ""
    return f"The weights are not updated: {why}.{suffix}"
