"""Pauses of a model, and updates of its weights: one call for all of its workers.

An update is done on every worker, or undone on those that have it: then the old weights go on serving. It is
done on one worker after another while the others serve (`rolling`), or on all of them at once in a pause
(`together`). A worker that connects later, or was restarted, is given the weights of the last update before
it gets requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from common.background import repeat, supervised
from router.config.choices import UpdateMode
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.agreement import AGREED_S, Shared
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.weights.agreed_weights import AgreedWeights
from router.dispatch.weights.hand_over import HandOver
from router.dispatch.weights.rolling import Phase, Rolling, Updatable
from router.dispatch.weights.tensors import StagedTensors, Tensors
from router.dispatch.weights.update_result import UpdateDone, UpdateFailed, why_failed
from router.dispatch.weights.weights_state import Alone, Seen, WeightsState, copied
from router.dispatch.workers.every_worker import NotEverywhere, WorkerRefused, on_every_worker
from router.dispatch.workers.member import WorkerUnavailable
from router.dispatch.workers.registry import Registry
from router.dispatch.workers.session import WorkerSession
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2
from rpc.status import RpcError

_log = logging.getLogger(__name__)

_LEFT_S: Final = 60.0
"""For a worker's last requests, and pages that may still be written."""
_LEAVE_S: Final = 30.0
"""For the answers of a worker that is updated to be handed over; others compute the rest anew."""
_GONE_S: Final = 5.0
"""For news of a worker that has been updated, or has ended."""
_LOOK_S: Final = 0.2
"""Interval of looking for what other routers do."""
_AGAIN_S: Final = 10.0
"""Workers of which one serves while the other is updated."""
_CLEARED: Final = ("pool", "host", "disk", "object")


class WeightUpdates:
    """Pauses and updates of one model by one router, one at a time."""

    def __init__(
        self,
        registry: Registry,
        dispatcher: ClusterDispatcher,
        abort_all: Callable[[], None],
        how: UpdateMode = UpdateMode.ROLLING,
        shared: Shared[WeightsState, Seen] | None = None,
    ) -> None:
        """`abort_all`: finishes every running request with the tokens that it has. `how`: see `update`.
        `shared`: with other routers; None: there are none. `begin` comes next."""
        self._how = how
        self.tensors = StagedTensors()
        self.asleep: frozenset[str] = frozenset()
        """Memory that the workers have given back; see `sleep`."""
        self._sleep_paused = False
        self.agreed = AgreedWeights(registry, dispatcher, abort_all, shared or Alone())
        self._registry = registry
        self._dispatcher = dispatcher
        self._abort_all = abort_all
        self._changing = asyncio.Lock()
        self._again: dict[str, float] = {}
        """When a session that does not take the weights of the others is asked again."""

    @property
    def served(self) -> worker_pb2.ServedWeights:
        """See `WeightsState.served`."""
        return self.agreed.state.served

    @property
    def is_paused(self) -> bool:
        return self._dispatcher.gate.mode is not None

    def of_tag(self, tag: str) -> worker_pb2.ServedWeights:
        """See `AgreedWeights.of_tag`."""
        return self.agreed.of_tag(tag)

    def workers(self) -> dict[str, worker_pb2.ServedWeights]:
        """What each worker that is connected has."""
        return {session.worker_id: session.info.served for session in self._registry.sessions()}

    def num_ranks(self) -> int:
        """Number of ranks of all connected workers."""
        return sum(session.info.ranks for session in self._registry.sessions())

    async def pause(self, mode: PauseMode) -> None:
        """Returns when no worker has requests to compute."""
        with self._dispatcher.metrics.weight_operation("pause"):
            async with self._changing:
                within_s = math.inf if mode is PauseMode.WAIT else AGREED_S
                await self.agreed.publish(lambda state: state.next(pause=mode), within_s)

    async def resume(self) -> None:
        """No effect if it is not paused. Raises InvalidRequest during an update."""
        if self._changing.locked():
            raise InvalidRequest("The service is being paused or updated: resume it after that.", code="busy")
        if self.asleep:
            raise InvalidRequest("The service is asleep: wake it up, which resumes it.", code="asleep")
        await self._resume()

    async def _resume(self) -> None:
        with self._dispatcher.metrics.weight_operation("resume"):
            await self.agreed.publish(lambda state: None if state.pause is None else state.next(pause=None))

    async def sleep(self, what: frozenset[str], mode: PauseMode) -> None:
        """Have all workers give back memory, after a pause in `mode`. Raises UpdateFailed, InvalidRequest."""
        if others := self._registry.other_routers():
            raise InvalidRequest(f"{', '.join(others)} uses these workers too.", code="several_routers")
        if not self.is_paused:
            await self.pause(mode)
            self._sleep_paused = True
        async with self._changing:
            try:
                await self._memory(worker_pb2.SleepRequest(release=what - self.asleep, timeout_s=_LEFT_S))
            except UpdateFailed:
                await self._memory(worker_pb2.SleepRequest(resume=what - self.asleep, timeout_s=_LEFT_S))
                await self._end_sleep()
                raise
            self.asleep |= what

    async def wake(self, what: frozenset[str]) -> None:
        """Have all workers take memory again; when they have all, requests go on. Raises UpdateFailed."""
        async with self._changing:
            await self._memory(worker_pb2.SleepRequest(resume=what & self.asleep, timeout_s=_LEFT_S))
            self.asleep -= what
            await self._end_sleep()

    async def _end_sleep(self) -> None:
        if not self.asleep and self._sleep_paused:
            self._sleep_paused = False
            await self._resume()

    async def _memory(self, request: worker_pb2.SleepRequest) -> None:
        async def ask(session: WorkerSession) -> None:
            if refused := await session.sleep(request):
                raise WorkerRefused(refused)

        try:
            await on_every_worker(self._registry.members(), ask)
        except NotEverywhere as error:
            raise UpdateFailed(f"Not every worker did so: {error}", public=True) from None

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
        connected, or the model is paused. Raises UpdateFailed, Unavailable if a router does not know of it
        in time, and InvalidRequest while another one updates the weights.
        """
        if not folder:
            raise InvalidRequest("The folder of the weights is missing.", code="missing_required_parameter")
        tag = secrets.token_hex(8)
        new = worker_pb2.ServedWeights(tag=tag, folder=folder, version=version or tag)
        self.agreed.known[tag] = new  # whose digest follows
        # A client that leaves does not end an update half-way.
        return await asyncio.shield(supervised(self._update(new, mode, how or self._how), "update"))

    async def update_tensors(
        self,
        tensors: Tensors,
        version: str = "",
        mode: PauseMode = PauseMode.KEEP,
        how: UpdateMode | None = None,
    ) -> UpdateDone:
        """`update` to the weights that are served, with these tensors in place of those of the same names."""
        try:
            return await self.update(self.tensors.prepare(tensors, self.served.folder), version, mode, how)
        finally:
            if not self._changing.locked():
                self.tensors.settle(self.served.folder)

    async def _update(self, new: worker_pb2.ServedWeights, mode: PauseMode, how: UpdateMode) -> UpdateDone:
        with self._dispatcher.metrics.weight_operation("update"):
            return await self._update_in_turn(new, mode, how)

    async def _update_in_turn(
        self, new: worker_pb2.ServedWeights, mode: PauseMode, how: UpdateMode
    ) -> UpdateDone:
        async with self._changing:
            began = time.monotonic()
            await self.agreed.look()
            self.tensors.check(new.folder, self.served.folder)
            if "weights" in self.asleep:
                raise InvalidRequest("The weights are given back: wake them up first.", code="asleep")
            if self.is_paused or len(self._registry.computing()) <= 1:
                how = UpdateMode.TOGETHER
            try:
                if how is UpdateMode.ROLLING:
                    paused = await self._roll(new, mode)
                else:
                    paused = await self._together(new, mode)
            finally:
                if self.agreed.state.by == self._registry.name and self.agreed.state.coming is not None:
                    await self.agreed.end(self.served)
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
        was_paused, name = self.is_paused, self._registry.name
        await self.agreed.publish(
            lambda state: state.next(
                by=name, coming=copied(new), pause=state.pause or mode, own_pause=state.pause is None
            ),
            math.inf if mode is PauseMode.WAIT else AGREED_S,
        )
        await self.agreed.end(await self._everywhere(new))
        return not was_paused

    async def _roll(self, new: worker_pb2.ServedWeights, mode: PauseMode) -> bool:
        """Returns whether no worker served for a moment. Raises UpdateFailed."""
        rolling, name = Rolling(self.served.tag, new.tag), self._registry.name
        await self.agreed.publish(
            lambda state: state.next(by=name, coming=copied(new), tags=rolling.versions, own_pause=False)
        )
        if mode is PauseMode.ABORT:
            self._abort_all()
        while (chosen := rolling.next(self._updatable())) is not None:
            weights = new if rolling.target == new.tag else self.served
            await self._update_one(rolling, chosen.id, weights)
            new.digest = rolling.digest
            await self.agreed.show(new, rolling.versions)
        if rolling.phase is Phase.FAILED:
            raise UpdateFailed(why_failed(rolling), public=True)
        await self.agreed.end(new)
        return bool(rolling.alone)

    def _updatable(self) -> list[Updatable]:
        return [
            Updatable(
                session.worker_id,
                session.role,
                session.info.served.tag,
                computes=session.role != worker_pb2.ROLE_ENCODE,
            )
            for session in self._registry.sessions()
        ]

    async def _update_one(self, rolling: Rolling, worker: str, weights: worker_pb2.ServedWeights) -> None:
        """Returns when the worker serves again, or was lost."""
        (member,) = (one for one in self._registry.members() if one.handle.worker_id == worker)
        if (session := member.session) is None:
            return
        others_serve = any(one.id != worker and one.computes for one in self._updatable())
        try:
            digest = (await self._replace(session, weights, leave_s=_LEAVE_S if others_serve else 0.0)).digest
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

    # ------------------------------------------------------------------------------ other routers

    async def begin(self) -> None:
        """Go by what other routers have agreed on, or by what the workers have if there are none."""
        await self.agreed.look()
        sessions = self._registry.sessions()
        updated = [session.info.served for session in sessions if session.info.served.digest]
        known = {self.served.tag, *self.agreed.state.tags}
        if not self.agreed.state.revision and updated:
            await self.agreed.end(updated[0])
        elif sessions and not any(session.info.served.tag in known for session in sessions):
            await self.agreed.end(updated[0] if updated else worker_pb2.ServedWeights())
        self._registry.prepare = self._catch_up
        for session in sessions:
            self.agreed.note_first(session)
        await self._update_left_out()

    async def run(self) -> None:
        """Keep in step with other routers, and hand answers over, for ever."""
        hand_over = HandOver(self._registry, self._dispatcher.answers, self._dispatcher.selector)
        handing_over = supervised(hand_over.follow(), "hand over")
        try:
            await repeat(self.turn, _LOOK_S, _log, "updates are not exchanged with other routers")
        finally:
            handing_over.cancel()
            await self.agreed.leave()

    async def turn(self) -> None:
        """Raises what the shared state raises."""
        await self.agreed.look()
        by = self.agreed.state.by
        if by and by not in (self._registry.name, *self._registry.other_routers()) and self._registry.leads:
            async with self._changing:
                await self._recover(by)
        await self._update_left_out()

    async def _update_left_out(self) -> None:
        """Try again to update the workers that get no requests because they have other weights."""
        now = time.monotonic()
        for session in self._registry.sessions():
            is_left_out = (
                self.agreed.state.coming is None and session.info.served.tag not in self.agreed.state.tags
            )
            if is_left_out and now >= self._again.get(session.key, now):
                self._again[session.key] = now + _AGAIN_S
                try:
                    await self._catch_up(session)
                except (WorkerUnavailable, RpcError) as error:
                    _log.warning("%s gets no requests: %s", session.worker_id, error)

    async def _recover(self, by: str) -> None:
        """End the update of a router that has ended: with the weights of before."""
        _log.warning("%s has ended during its update: workers take the old weights back", by)
        for session in self._registry.sessions():
            if session.info.served.tag != self.served.tag:
                try:
                    await self._replace(session, self.served, leave_s=0.0)
                except (WorkerRefused, RpcError) as error:
                    _log.error("%s does not take the old weights back: %s", session.worker_id, error)
        served = self.served
        await self.agreed.take_over(lambda state: state.ended(served) if state.by == by else None)

    async def _everywhere(self, new: worker_pb2.ServedWeights) -> worker_pb2.ServedWeights:
        """Raises UpdateFailed, after all workers that can have the old weights again."""
        members = self._registry.members()
        try:
            answers = await on_every_worker(members, partial(self._replace, weights=new))
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
            await on_every_worker(self._registry.members(), partial(self._replace, weights=self.served))
        except NotEverywhere as error:
            _log.error("not all workers have their old weights again after %s: %s", new.folder, error)

    async def _catch_up(self, session: WorkerSession) -> None:
        """Give a worker that connects the weights of all others. Raises WorkerUnavailable, RpcError."""
        self.agreed.note_first(session)
        if self.agreed.state.coming is not None and not self.agreed.state.is_rolling:
            raise WorkerUnavailable("all weights are being updated")
        if session.info.served.tag not in self.agreed.state.tags:
            try:
                await self._replace(session, self.agreed.state.wanted)
            except WorkerRefused as error:
                raise WorkerUnavailable(f"it does not take the weights of the others: {error}") from None

    async def _replace(
        self, session: WorkerSession, weights: worker_pb2.ServedWeights, leave_s: float | None = None
    ) -> worker_pb2.ServedWeights:
        """`leave_s`: see `UpdateWeightsRequest`. Raises WorkerRefused, RpcError."""
        await self.tensors.stage(session, weights.folder)
        request = worker_pb2.UpdateWeightsRequest(weights=weights, timeout_s=_LEFT_S, leave_s=leave_s)
        report = await session.update_weights(request)
        if report.incomplete or not report.refused:
            session.info.served.CopyFrom(report.weights)
        if report.refused:
            raise WorkerRefused(report.refused)
        return report.weights
