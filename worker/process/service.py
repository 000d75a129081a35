"""gRPC service of a worker: `baton.v1.Worker`."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import grpc

from common.background import supervised
from engine.core.adapters import AdapterInfo
from engine.errors import AdapterRefused
from engine.model_config.errors import WeightsError
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.session import ROUTER_LATE, ROUTER_METADATA
from worker.process.engine_loop import EngineDied
from worker.process.router_watch import RouterWatch
from worker.request_handler import RequestHandler
from worker.session.convert import adapter_answer
from worker.session.inbox import Inbox
from worker.session.router_session import TURN_S, Lease, RouterLate, RouterSession, SessionBroken

T = TypeVar("T")

_LOOK_S: Final = 0.02
"""Interval of looking for what an update of the weights waits for."""
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """Forwards calls to the engine thread."""

    def __init__(
        self,
        inbox: Inbox,
        handler: RequestHandler,
        info: worker_pb2.WorkerInfo,
        clock: Callable[[], float],
        router_watch: RouterWatch,
    ) -> None:
        """`clock`: the handler's."""
        self._inbox = inbox
        self._handler = handler
        self._info = info
        self._clock = clock
        self._router_watch = router_watch
        self._sessions: set[RouterSession] = set()

    @property
    def routers(self) -> list[str]:
        """The names of the connected routers."""
        return sorted({session.router for session in self._sessions})

    async def Session(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.Command], context: Context
    ) -> None:
        """The stream ends when the router disconnects or its lease expires, which aborts all requests
        received over it.

        Heartbeats start at once, also during a long engine step.
        """
        session, lease = RouterSession(_router_of(context)), Lease()
        self._sessions.add(session)
        with self._router_watch.session(), contextlib.ExitStack() as end:
            end.callback(self._inbox.post, self._handler.close, session)
            end.callback(self._sessions.discard, session)
            opened = self._inbox.ask(lambda: self._handler.open(session))
            opened.add_done_callback(partial(_fail_with, session))
            for task in (
                supervised(self._read(request_iterator, session, lease), f"commands of {session.router}"),
                supervised(self._watch(session, lease), f"lease of {session.router}"),
            ):
                end.callback(task.cancel)
            try:
                async for batch in session.batches():
                    await context.write(batch)
            except SessionBroken as error:
                code = ROUTER_LATE if isinstance(error, RouterLate) else grpc.StatusCode.UNAVAILABLE
                await context.abort(code, str(error))

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerInfo:
        return self._info

    async def GetStats(  # noqa: N802
        self, request: worker_pb2.GetStatsRequest, context: Context
    ) -> worker_pb2.WorkerStats:
        """Answered between two steps, after all earlier commands."""
        return await self._ask_engine(self._handler.stats, context)

    async def ManageCache(  # noqa: N802
        self, request: worker_pb2.ManageCacheRequest, context: Context
    ) -> worker_pb2.CacheReport:
        """Done between two steps."""
        return await self._ask_engine(lambda: self._handler.manage_cache(request), context)

    async def UpdateWeights(  # noqa: N802
        self, request: worker_pb2.UpdateWeightsRequest, context: Context
    ) -> worker_pb2.WeightsReport:
        """Answered when the weights are replaced, or refused. Heartbeats go on meanwhile."""
        now, leaves = self._clock(), request.HasField("leave_s")
        ends, leave_at = now + request.timeout_s, now + request.leave_s if leaves else math.inf

        def update() -> worker_pb2.WeightsReport | None:
            report = self._handler.update_weights(request, leave_at)
            if report is not None and (report.incomplete or not report.refused):
                self._info.served.CopyFrom(report.weights)
            return report

        if leaves:
            drain = partial(self._handler.drain, for_update=True)
            self._inbox.post(drain, request.timeout_s + _LOOK_S)
        try:
            while (report := await self._ask_engine(update, context)) is None:
                if self._clock() >= ends:
                    left = f"requests or pages of KV were left after {request.timeout_s:g} s"
                    return worker_pb2.WeightsReport(weights=self._info.served, refused=left)
                await asyncio.sleep(_LOOK_S)
            return report
        finally:
            if leaves:
                self._inbox.post(self._handler.drain, 0.0)

    async def Sleep(  # noqa: N802
        self, request: worker_pb2.SleepRequest, context: Context
    ) -> worker_pb2.SleepReport:
        ends = self._clock() + request.timeout_s
        while (report := await self._ask_engine(lambda: self._handler.sleep(request), context)) is None:
            if self._clock() >= ends:
                return worker_pb2.SleepReport(refused="requests or pages of KV are left")
            await asyncio.sleep(_LOOK_S)
        return report

    async def StageWeights(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.WeightsPart], context: Context
    ) -> worker_pb2.StagedWeights:
        """Written while steps go on."""
        parts = aiter(request_iterator)
        try:
            first = await anext(parts)
            staging = await asyncio.to_thread(
                self._handler.staged_weights.begin, first.folder, first.base, first.keep
            )
            if staging is not None:
                try:
                    async for part in parts:
                        await asyncio.to_thread(staging.write, part.data)
                    await asyncio.to_thread(staging.finish)
                finally:
                    staging.drop()
        except (WeightsError, OSError) as error:
            return worker_pb2.StagedWeights(error=str(error))
        return worker_pb2.StagedWeights()

    async def LoadAdapter(  # noqa: N802
        self, request: worker_pb2.LoadAdapterRequest, context: Context
    ) -> worker_pb2.AdapterInfo:
        """The adapter is read while steps go on, and taken between two of them."""
        adapters = self._handler.adapters
        await self._ask_engine(lambda: adapters.begin(request), context)
        try:
            read = await asyncio.to_thread(adapters.read, request)
        except AdapterRefused as error:
            return worker_pb2.AdapterInfo(name=request.name, error=str(error))
        return await self._adapter(lambda: adapters.add(read), context)

    async def UnloadAdapter(  # noqa: N802
        self, request: worker_pb2.UnloadAdapterRequest, context: Context
    ) -> worker_pb2.AdapterInfo:
        return await self._adapter(lambda: self._handler.adapters.unload(request.digest), context)

    async def _adapter(self, call: Callable[[], AdapterInfo], context: Context) -> worker_pb2.AdapterInfo:
        return await self._ask_engine(lambda: adapter_answer(call), context)

    async def _read(
        self, commands: AsyncIterator[worker_pb2.Command], session: RouterSession, lease: Lease
    ) -> None:
        try:
            async for command in commands:
                lease.heard()
                if command.HasField("beat"):
                    if command.beat.without_ray != session.without_ray:
                        self._inbox.post(session.tell, without_ray=command.beat.without_ray)
                else:
                    self._inbox.post(self._handler.handle, session, command, self._clock())
        finally:
            session.close()

    async def _watch(self, session: RouterSession, lease: Lease) -> None:
        """End the session when the lease ends."""
        while not lease.has_ended:
            began = self._clock()
            await asyncio.sleep(TURN_S)
            lease.passed(self._clock() - began)
        session.give_up(f"the router was silent for {lease.lease_s:g} s")
        # Now: a stopped router reads nothing, so the stream may not end before its connection does.
        self._inbox.post(self._handler.close, session)

    async def _ask_engine(self, question: Callable[[], T], context: Context) -> T:
        try:
            return await asyncio.wrap_future(self._inbox.ask(question))
        except EngineDied as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise


def _router_of(context: Context) -> str:
    metadata = dict(context.invocation_metadata() or ())
    return str(metadata.get(ROUTER_METADATA, context.peer()))


def _fail_with(session: RouterSession, opened: Future[None]) -> None:
    if not opened.cancelled() and (error := opened.exception()) is not None:
        session.fail(str(error))
