"""The router's end of the stream to one incarnation of one worker.

All requests share one bidirectional stream. Commands are sent in the order of the `send` calls; the events of
an EventBatch are handed to the listeners of their requests in one turn of the event loop. A session never
reconnects: when the stream breaks, the worker aborts all requests that it received over it, and the registry
opens a new session, perhaps to a new process (see registry.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

import grpc

from common.background import cancelled, supervised
from common.block_hash import BlockHash
from router.dispatch.workers.arrivals import ON_TIME, Arrivals
from router.dispatch.workers.events import Loss, Message, SessionListener, WorkerLost
from router.dispatch.workers.liveness import CircuitBreaker, HeartbeatMonitor, Liveness, OwnPauses
from router.dispatch.workers.loop_turns import busy_since
from router.dispatch.workers.request_pages import request_pages
from router.dispatch.workers.silence_probe import cause_of, why_lost
from router.dispatch.workers.worker_adapters import WorkerAdapters
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.channel import Endpoint, connect
from rpc.session import BEAT_S, ROUTER_LATE, ROUTER_METADATA
from rpc.status import RpcUnreachable, translate

_log = logging.getLogger(__name__)

_Call: TypeAlias = "grpc.aio.StreamStreamCall[worker_pb2.Command, worker_pb2.EventBatch]"

_numbers: Final = itertools.count(1)
_TURN_S: Final = 0.1
_LONGEST_TURN_S: Final = 0.2


class WorkerSession:
    """Create with `open`. For each request: `listen`, `send`, and `forget` when the request is over."""

    def __init__(
        self,
        worker_id: str,
        channel: grpc.aio.Channel,
        stub: worker_pb2_grpc.WorkerStub,
        info: worker_pb2.WorkerInfo,
        breaker: CircuitBreaker,
        monitor: HeartbeatMonitor,
        on_news: Callable[[], None],
        router: str,
        has_ray: Callable[[], bool],
    ) -> None:
        self.worker_id = worker_id
        self.info = info
        self.breaker = breaker
        self.role: worker_pb2.Role = info.role
        """The role that the router uses the worker for; initially `info.role`."""
        self.key: Final = f"{worker_id}@{next(_numbers)}"
        """Unique over all sessions."""
        self.load = WorkerLoad(request_pages(info), info.max_running_requests, router)
        self.num_sent = 0
        """Commands so far."""
        self.num_cut = 0
        """Requests that ran when the session was lost."""
        self.step = 0
        """Step counter of the worker's engine in its last message; it grows while the engine works."""
        self.on_step: Callable[[worker_pb2.StepWork], None] = lambda _step: None
        """Called with every step whose duration the worker reports."""
        self.on_encoded: Callable[[worker_pb2.Encoded], None] = lambda _encoded: None
        """Called with every report about images that the worker encoded."""
        self.on_cache: Callable[[bool, Sequence[BlockHash]], None] = lambda _stored, _blocks: None
        """Called with pages that the worker's prefix cache has stored (True) or removed."""
        self.arrival = ON_TIME
        """Arrival of the latest batch."""
        self.adapters = WorkerAdapters(worker_id, stub, info)
        self._arrivals = Arrivals(busy_since)
        self._router = router
        self._has_ray = has_ray
        self._monitor = monitor
        self._own_pauses = OwnPauses()
        self._on_news = on_news
        self._channel = channel
        self._stub = stub
        self._listeners: dict[int, SessionListener] = {}
        self._outgoing: deque[worker_pb2.Command] = deque()
        self._wake_writer = asyncio.Event()
        self._heard = True
        loop = asyncio.get_running_loop()
        self._speaks: asyncio.Future[None] = loop.create_future()
        """Done with the first batch, or an RpcError if the stream ends before."""
        self._lost: asyncio.Future[WorkerLost] = loop.create_future()
        self._pump = supervised(self._run(), f"session {worker_id}")

    @classmethod
    async def open(
        cls,
        worker_id: str,
        endpoint: Endpoint,
        breaker: CircuitBreaker,
        *,
        monitor: HeartbeatMonitor,
        on_news: Callable[[], None] = lambda: None,
        router: str = "",
        has_ray: Callable[[], bool] = lambda: True,
        timeout_s: float = 10.0,
    ) -> WorkerSession:
        """Connect, get the worker's description, and wait for its first message. Raises RpcError.

        `monitor` decides when a worker without messages is late and when it is lost. `on_news` is called when
        the worker reports its load, becomes late or is no longer late. `router`: this router's name.
        `has_ray`: whether Ray answers it.
        """
        channel = connect(endpoint.address, endpoint.credentials)
        stub = worker_pb2_grpc.WorkerStub(channel)  # type: ignore[no-untyped-call]
        try:
            info = await stub.Describe(worker_pb2.DescribeRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            await channel.close()
            raise translate(error, f"{worker_id} at {endpoint.address}") from None
        except BaseException:
            await channel.close()
            raise
        session = cls(worker_id, channel, stub, info, breaker, monitor, on_news, router, has_ray)
        try:
            await session._speaks
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def alive(self) -> bool:
        return not self._lost.done()

    @property
    def liveness(self) -> Liveness:
        """Whether heartbeats arrive in time: good, late or lost."""
        return self._monitor.liveness

    @property
    def router_was_late(self) -> bool:
        """Whether this router was itself stopped or hung a moment ago, so that others have given it up."""
        return self._own_pauses.is_recent

    def listen(self, request_id: int, listener: SessionListener) -> None:
        """Hand the events of this request to `listener`, and the loss of the session."""
        if self._lost.done():
            asyncio.get_running_loop().call_soon(listener.event, self._lost.result(), time.monotonic())
        else:
            self._listeners[request_id] = listener

    def forget(self, request_id: int) -> None:
        self._listeners.pop(request_id, None)

    def send(self, command: worker_pb2.Command) -> None:
        """Queue a command. No-op on a lost session, whose listeners were notified."""
        if self._lost.done():
            return
        self.num_sent += 1
        self._outgoing.append(command)
        self._wake_writer.set()

    def abort(self, request_id: int) -> None:
        self.send(worker_pb2.Command(abort=worker_pb2.Abort(request_id=request_id)))

    async def lost(self) -> str:
        """Wait until the stream is broken or closed; returns the reason."""
        return (await asyncio.shield(self._lost)).reason

    async def stats(self, timeout_s: float = 5.0) -> worker_pb2.WorkerStats:
        """Raises RpcError."""
        stats: worker_pb2.WorkerStats = await self._answer(
            self._stub.GetStats(worker_pb2.GetStatsRequest(), timeout=timeout_s)
        )
        return stats

    async def manage_cache(
        self, request: worker_pb2.ManageCacheRequest, timeout_s: float = 30.0
    ) -> worker_pb2.CacheReport:
        """Raises RpcError."""
        report: worker_pb2.CacheReport = await self._answer(
            self._stub.ManageCache(request, timeout=timeout_s)
        )
        return report

    async def update_weights(self, request: worker_pb2.UpdateWeightsRequest) -> worker_pb2.WeightsReport:
        """Takes as long as reading the weights; a worker that dies meanwhile is noticed. Raises RpcError."""
        report: worker_pb2.WeightsReport = await self._answer(self._stub.UpdateWeights(request))
        return report

    async def sleep(self, request: worker_pb2.SleepRequest) -> str:
        """Returns why nothing has changed, or nothing. Raises RpcError."""
        return str((await self._answer(self._stub.Sleep(request))).refused)

    async def stage_weights(self, parts: AsyncIterator[worker_pb2.WeightsPart]) -> str:
        """Send tensors; returns why they are not taken, or nothing. Raises RpcError."""
        return str((await self._answer(self._stub.StageWeights(parts))).error)

    async def _answer(self, call: Awaitable[Any]) -> Any:
        """Raises RpcError."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.worker_id) from None

    async def idle(self, timeout_s: float) -> bool:
        """Wait until all requests of the worker have ended; False after `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.load.idle.wait()
        return self.load.idle.is_set()

    def dismiss(self, reason: str) -> None:
        """End the session after a drain: its remaining requests are retried on other workers."""
        self._end(WorkerLost(reason, Loss.PLANNED))

    async def close(self) -> None:
        """End the stream; the worker aborts the remaining requests."""
        await cancelled(self._pump)
        await self._channel.close()

    async def _run(self) -> None:
        call = self._stub.Session(metadata=((ROUTER_METADATA, self._router),))
        writer = supervised(self._write(call), f"commands {self.worker_id}")
        watch = supervised(self._watch_silence(call), f"silence {self.worker_id}")
        loss = WorkerLost("the session was closed")
        try:
            while (batch := await call.read()) is not grpc.aio.EOF:
                self._heard = True
                if not self._speaks.done():
                    self._speaks.set_result(None)
                self._deliver(batch)
            loss = WorkerLost("it ended the session")
        except grpc.aio.AioRpcError as error:
            how = Loss.ROUTER_LATE if error.code() is ROUTER_LATE else Loss.BROKEN
            loss = WorkerLost(f"its stream broke: {cause_of(error)}", how)
        except asyncio.CancelledError:
            if not watch.done():
                raise
            loss = watch.result()
        finally:
            writer.cancel()
            watch.cancel()
            call.cancel()
            self._end(loss)

    async def _watch_silence(self, call: _Call) -> WorkerLost:
        """End the call after too long without a message: a stopped process keeps its sockets open.

        A late worker is probed with a separate call. If its process has ended, or another process answers,
        the session is lost at once; if it answers, its timeouts restart.

        An iteration counts at most `_LONGEST_TURN_S`, however long it took: while the router itself is
        stopped, its workers must not appear silent.
        """
        monitor, silent_s = self._monitor, 0.0
        probe: asyncio.Task[WorkerLost | None] | None = None
        try:
            while True:
                began, before = time.monotonic(), monitor.liveness
                await asyncio.sleep(_TURN_S)
                self._own_pauses.turned()
                passed = min(time.monotonic() - began, _LONGEST_TURN_S)
                silent_s = 0.0 if self._heard else silent_s + passed
                if self._heard:
                    self._heard = False
                    monitor.heard()
                elif monitor.passed(passed) is Liveness.LOST or self._is_late_to_begin:
                    loss = WorkerLost(f"silent for {silent_s:.1f} s", Loss.SILENT)
                    break
                elif monitor.liveness is Liveness.LATE and probe is None and not monitor.has_answered:
                    probe = supervised(why_lost(self._stub, self.info.epoch), f"probe {self.worker_id}")
                if probe is not None and probe.done():
                    if (found := probe.result()) is not None:
                        loss = found
                        break
                    probe = None
                    monitor.answered()
                if monitor.liveness is not before:
                    self._on_hearing(silent_s)
        finally:
            if probe is not None:
                probe.cancel()
        call.cancel()
        return loss

    @property
    def _is_late_to_begin(self) -> bool:
        """Whether the session is late before its first message: a new session may work."""
        return self._monitor.liveness is Liveness.LATE and not self._speaks.done()

    def _on_hearing(self, silent_s: float) -> None:
        if self.liveness is Liveness.LATE:
            _log.warning(
                "%s is late: no message for %.1f s; it gets no new requests", self.worker_id, silent_s
            )
        else:
            _log.info("%s is no longer late", self.worker_id)
        self._on_news()

    async def _write(self, call: _Call) -> None:
        loop = asyncio.get_running_loop()
        beats_at = loop.time() + BEAT_S
        try:
            while True:
                if loop.time() >= beats_at:
                    beat = worker_pb2.Beat(without_ray=not self._has_ray())
                    await call.write(worker_pb2.Command(beat=beat))
                    beats_at = loop.time() + BEAT_S
                try:
                    async with asyncio.timeout_at(beats_at):
                        await self._wake_writer.wait()
                except TimeoutError:
                    continue
                self._wake_writer.clear()
                while self._outgoing:
                    await call.write(self._outgoing.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader fails too, with the reason

    def _deliver(self, batch: worker_pb2.EventBatch) -> None:
        """Hand events to listeners, with one look-up each; events of forgotten requests are dropped."""
        now = time.monotonic()
        self.arrival = self._arrivals.note(batch, now)
        self.step = max(self.step, batch.step)
        if batch.HasField("step_work"):
            self.on_step(batch.step_work)
        if batch.HasField("peer"):
            self.info.peer.CopyFrom(batch.peer)
        if batch.HasField("served"):
            self.info.served.CopyFrom(batch.served)
        for encoded in batch.encoded:
            self.on_encoded(encoded)
        for change in batch.cache:
            self.load.cached.changed(change)
            self.on_cache(change.stored, change.blocks)
        if batch.HasField("load"):
            self.load.report(batch.load, batch.commands)
            self.adapters.report(batch.load.adapters)
            self._on_news()
        for events in (
            batch.wanted,
            batch.started,
            batch.reserved,
            batch.resumed,
            batch.encoded,
            batch.progress,
            batch.arrived,
        ):
            self._hand_out(events, now)
        for output in batch.outputs:
            listener = self._listeners.get(output.request_id)
            if listener is not None:
                listener.output(output, now)
        self._hand_out(batch.preempted, now)
        self._hand_out(batch.handed_off, now)
        self._hand_out(batch.failed, now)

    def _hand_out(self, events: Iterable[Message], at: float) -> None:
        for message in events:
            listener = self._listeners.get(message.request_id)
            if listener is not None:
                listener.event(message, at)

    def _end(self, loss: WorkerLost) -> None:
        if self._lost.done():
            return
        if loss.how is Loss.BROKEN and self.router_was_late:
            loss = loss._replace(how=Loss.ROUTER_LATE)
        self._lost.set_result(loss)
        if not self._speaks.done():
            self._speaks.set_exception(
                RpcUnreachable(self.worker_id, grpc.StatusCode.UNAVAILABLE, loss.reason)
            )
        self._outgoing.clear()
        now = time.monotonic()
        listeners = list(self._listeners.values())
        self.num_cut = len(listeners)
        self._listeners.clear()
        for listener in listeners:
            listener.event(loss, now)
