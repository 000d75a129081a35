"""A worker as a Ray actor, over all of its incarnations.

The actor is detached and named after the worker: it outlives the routers, and any router of the cluster finds
it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from common.error_text import first_line
from router.cluster.ray_thread import RayThread
from router.cluster.record import ClusterRecord
from router.cluster.worker_config.worker_plan import WorkerPlan
from router.dispatch.workers.member import WorkerBroken, WorkerStopped, WorkerUnavailable
from rpc.baton.v1 import worker_pb2
from rpc.channel import Endpoint
from rpc.tls import Identity
from worker.config import WorkerRole

_log = logging.getLogger(__name__)

_STOP_S: Final = 10.0
_ASK_AGAIN_S: Final = 20.0
_ANSWER_S: Final = 10.0
"""Interval of asking a worker that was up and does not answer."""


class RayWorker:
    """One worker over all of its incarnations. Implements `registry.WorkerHandle`.

    A process that does not answer is killed only when it must be hung: it has not answered for
    --router-timeout, during which Ray answered and reached its node. By then a process that can run has ended
    itself (`RouterWatch`), or its answer has arrived.
    """

    def __init__(
        self,
        plan: WorkerPlan,
        find: Callable[[], Any],
        record: ClusterRecord,
        thread: RayThread,
        *,
        identity: Identity,
        reaches: Callable[[str], Awaitable[bool]],
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """`find` returns the actor of this name, which it creates in the worker's reserved place if there is
        none; `identity` is that of the cluster's routers.

        Calls that may wait for Ray run on `thread`: a Ray that does not answer must not block the streams.
        `reaches(node)`: whether Ray answers and reaches the node with this id. `leads()`: whether this
        router, of those that are connected to the workers, is the one that kills hung ones.
        """
        self.worker_id = plan.config.worker_id
        self.role = _ROLES[plan.config.role]
        self._find = find
        self._actor: Any = None
        """None: not found yet, or ended for good."""
        self._record = record
        self._identity = identity
        self._thread = thread
        self._reaches = reaches
        self._hung_after_s = plan.config.router_timeout_s
        self._node = ""
        """Node of the last incarnation that answered."""
        self._silent_s = 0.0
        """Seconds without an answer since Ray last failed to reach the node. A sum of waits: time in which
        this router was stopped does not count."""
        self._finding = asyncio.Lock()
        self._was_up = False
        """Whether this incarnation has answered."""
        self._has_served = False
        """Whether any incarnation has answered."""
        self._leads = leads
        self.stages: tuple[tuple[str, float], ...] = ()
        """The stages of the last start that ended, each with its seconds."""

    async def endpoint(self) -> Endpoint:
        """The worker's address, once its model is loaded. Raises WorkerUnavailable, WorkerBroken."""
        actor = await self._found()
        try:
            listening = await asyncio.wait_for(
                actor.start.remote(), _ANSWER_S if self._was_up else _ASK_AGAIN_S
            )
        except (TimeoutError, RayError) as error:
            if actor is not self._actor:
                # `revive` replaced the actor meanwhile: its failure says nothing about the new one.
                raise WorkerUnavailable("it was restarted") from None
            raise await self._trouble_of(actor, error) from None
        if actor is not self._actor:
            raise WorkerUnavailable("it was restarted")
        self._was_up = self._has_served = True
        self._node, self._silent_s = listening.node, 0.0
        self.stages = listening.stages
        return Endpoint(listening.address, self._identity.call(listening.certificate))

    async def _found(self) -> Any:
        """The actor. Raises WorkerUnavailable, WorkerStopped."""
        async with self._finding:
            if self._actor is None:
                try:
                    if await self._thread.call(partial(self._record.is_stopped, self.worker_id)):
                        raise WorkerStopped("it was drained; `router restart` starts it")
                    if not await self._thread.call(partial(self._record.is_wanted, self.worker_id)):
                        raise WorkerStopped("there are to be fewer workers; see `router scale`")
                    self._actor = await self._thread.call(self._find)
                except RayError as error:
                    raise WorkerUnavailable(first_line(error)) from error
                self._was_up, self._silent_s = False, 0.0
            return self._actor

    async def _trouble_of(self, actor: Any, error: TimeoutError | RayError) -> WorkerUnavailable:
        """Interpret a failure of the current actor's `start`, and restart the actor if that helps."""
        match error:
            case TimeoutError():
                return await self._no_answer()
            case RayTaskError():
                return WorkerBroken(_last_line(error))
            case ActorDiedError():
                # Ray restarts a process that dies. Its actor has ended if its constructor failed, or if a
                # router ended it: it was drained, or replaced by one with the same name.
                self._actor = None
                if error.actor_init_failed:
                    return WorkerBroken(_last_line(error))
                return WorkerUnavailable("a router has ended its process")
            case ActorUnavailableError():
                self._was_up = False
                return WorkerUnavailable("its process has ended, and Ray restarts it")
            case _:
                self._was_up = False
                return WorkerUnavailable(first_line(error))

    async def _no_answer(self) -> WorkerUnavailable:
        if not self._was_up:
            # It is loading, and the next call waits for the same load; or Ray has lost this actor.
            return WorkerUnavailable(
                "still loading, or on a node that is out of reach" if self._has_served else "still loading"
            )
        if not await self._reaches(self._node):
            self._silent_s = 0.0
            return WorkerUnavailable("Ray does not reach its node")
        self._silent_s += _ANSWER_S
        if self._silent_s < self._hung_after_s:
            return WorkerUnavailable(
                f"no answer for {self._silent_s:g} s; it is restarted after --router-timeout"
                f" {self._hung_after_s:g} s"
            )
        if not self._leads():
            return WorkerUnavailable(f"no answer for {self._silent_s:g} s; another router restarts it")
        _log.warning("%s has not answered for %g s and is killed", self.worker_id, self._silent_s)
        self._was_up, self._silent_s = False, 0.0
        await self._thread.call(partial(ray.kill, self._actor, no_restart=False))
        return WorkerUnavailable("it did not answer, and is restarted")

    async def progress(self) -> tuple[str, int, int] | None:
        """What the worker is loading, bytes done and bytes in total; None while it cannot answer."""
        if self._actor is None:
            return None
        try:
            state = await self._actor.progress.remote()
        except RayError:
            return None
        return state.stage, state.done, state.total

    async def revive(self) -> None:
        """Start a new process in the same place, after `stop`."""
        async with self._finding:
            # In this order: until then no other router, whose settings may be others, creates it.
            self._actor = await self._thread.call(self._find)
            self._was_up, self._silent_s = False, 0.0
            await self._thread.call(partial(self._record.keep_stopped, self.worker_id, False))

    async def drain(self, seconds: float) -> None:
        """See `WorkerHandle`. A worker that does not answer has no requests."""
        if self._actor is None:
            return
        try:
            async with asyncio.timeout(seconds + _STOP_S):
                await self._actor.drain.remote(seconds)
        except (RayError, TimeoutError) as error:
            _log.debug("%s was not drained: %s", self.worker_id, first_line(error))

    async def stop(self) -> None:
        """Stop the worker: orderly if it answers, by killing it otherwise. No router starts it before
        `revive`.
        """
        async with self._finding:
            was_stopped = await self._thread.call(partial(self._record.is_stopped, self.worker_id))
            await self._thread.call(partial(self._record.keep_stopped, self.worker_id, True))
            if self._actor is None and was_stopped:
                return
            actor = self._actor or await self._thread.call(self._find)
            self._actor = None
        await end_actor(actor, self._thread)


async def end_actor(actor: Any, thread: RayThread) -> None:
    """Stop the worker of this actor if it answers, and end its process."""
    try:
        async with asyncio.timeout(_STOP_S):
            await actor.stop.remote()
    except (RayError, TimeoutError) as error:
        _log.debug("a worker did not stop by itself: %s", error)
    await thread.call(partial(ray.kill, actor, no_restart=True))


def _last_line(error: RayError) -> str:
    """The last line of the worker's traceback: the exception."""
    return str(error).strip().rpartition("\n")[2]


_ROLES: Final = {
    WorkerRole.PREFILL: worker_pb2.ROLE_PREFILL,
    WorkerRole.DECODE: worker_pb2.ROLE_DECODE,
    WorkerRole.ENCODE: worker_pb2.ROLE_ENCODE,
}
