"""The router's end of the stream to one incarnation of one worker.

All requests share one bidirectional stream. Commands go out in the order in which they were given; every
EventBatch that comes back is taken apart and each event is given to the attempt that it is about.
A session never reconnects: once the stream breaks, the worker aborts everything that came over it, so what
follows is a new session to, perhaps, a new process (see registry.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Final, TypeAlias

import grpc

from router.health import Health
from router.worker_events import Event, Listener, WorkerLost
from router.worker_load import WorkerLoad
from rpc.baton.v1 import worker_pb2, worker_pb2_grpc
from rpc.channel import Endpoint, connect
from rpc.status import RpcUnreachable, translate

__all__ = ["WorkerSession"]

_Call: TypeAlias = "grpc.aio.StreamStreamCall[worker_pb2.Command, worker_pb2.EventBatch]"

_TURN_S: Final = 0.05
_LONGEST_TURN_S: Final = 0.15
_AT_ONCE: Final = 32
"""Events, after which others get a turn: the first answer of a step need not wait for its last."""


class WorkerSession:
    """Use `open`; then `listen`, `send`, and `forget` when the request is over."""

    def __init__(
        self,
        worker_id: str,
        channel: grpc.aio.Channel,
        stub: worker_pb2_grpc.WorkerStub,
        info: worker_pb2.WorkerInfo,
        health: Health,
        silence_s: float,
    ) -> None:
        self.worker_id = worker_id
        self.info = info
        self.health = health
        self.load = WorkerLoad()
        self.step = 0
        """Of the worker's engine, as last heard: while it grows, the engine works."""
        self._silence_s = silence_s
        self._channel = channel
        self._stub = stub
        self._listeners: dict[int, Listener] = {}
        self._outgoing: deque[worker_pb2.Command] = deque()
        self._wake_writer = asyncio.Event()
        self._heard = True
        loop = asyncio.get_running_loop()
        self._speaks: asyncio.Future[None] = loop.create_future()
        """Done with the first batch; an RpcError if none comes."""
        self._lost: asyncio.Future[WorkerLost] = loop.create_future()
        self._pump = asyncio.create_task(self._run(), name=f"session {worker_id}")

    @classmethod
    async def open(
        cls,
        worker_id: str,
        endpoint: Endpoint,
        health: Health,
        *,
        silence_s: float,
        timeout_s: float = 10.0,
    ) -> WorkerSession:
        """Connects, asks the worker who it is, and waits until it speaks. Raises RpcError.

        A worker that then says nothing for `silence_s`, not even that it lives, is taken for lost.
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
        session = cls(worker_id, channel, stub, info, health, silence_s)
        try:
            await session._speaks
        except BaseException:
            await session.close()
            raise
        return session

    @property
    def alive(self) -> bool:
        return not self._lost.done()

    def listen(self, request_id: int, listener: Listener) -> None:
        """From now on, events of this request go to `listener`. A lost session says so, after this call."""
        if self._lost.done():
            loss = Event(self._lost.result(), time.monotonic(), self)
            asyncio.get_running_loop().call_soon(listener, loss)
        else:
            self._listeners[request_id] = listener

    def forget(self, request_id: int) -> None:
        self._listeners.pop(request_id, None)

    def send(self, command: worker_pb2.Command) -> None:
        """Queues a command. On a lost session this does nothing: its listeners know already."""
        if self._lost.done():
            return
        self._outgoing.append(command)
        self._wake_writer.set()

    def abort(self, request_id: int) -> None:
        self.send(worker_pb2.Command(abort=worker_pb2.Abort(request_id=request_id)))

    async def lost(self) -> str:
        """Waits until the stream is broken or closed; says why."""
        return (await asyncio.shield(self._lost)).reason

    async def stats(self, timeout_s: float = 5.0) -> worker_pb2.WorkerStats:
        """Raises RpcError."""
        try:
            stats: worker_pb2.WorkerStats = await self._stub.GetStats(
                worker_pb2.GetStatsRequest(), timeout=timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise translate(error, self.worker_id) from None
        return stats

    async def idle(self, timeout_s: float) -> bool:
        """Whether all its requests come to an end within the time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.load.idle.wait()
        return self.load.idle.is_set()

    def dismiss(self, reason: str) -> None:
        """Ends the session in order: what still runs over it goes on elsewhere."""
        self._end(WorkerLost(reason, planned=True))

    async def close(self) -> None:
        """Ends the stream; the worker aborts what is left of its requests."""
        self._pump.cancel()
        await asyncio.wait([self._pump])
        await self._channel.close()

    async def _run(self) -> None:
        call = self._stub.Session()
        writer = asyncio.create_task(self._write(call), name=f"commands {self.worker_id}")
        watch = asyncio.create_task(self._watch_silence(call), name=f"silence {self.worker_id}")
        reason = "the session was closed"
        try:
            while (batch := await call.read()) is not grpc.aio.EOF:
                self._heard = True
                if not self._speaks.done():
                    self._speaks.set_result(None)
                await self._deliver(batch)
            reason = f"{self.worker_id} ended the session"
        except grpc.aio.AioRpcError as error:
            reason = str(translate(error, self.worker_id))
        except asyncio.CancelledError:
            if not watch.done():
                raise
            reason = f"{self.worker_id} was silent for {self._silence_s:g} s"
        finally:
            writer.cancel()
            watch.cancel()
            call.cancel()
            self._end(WorkerLost(reason))

    async def _watch_silence(self, call: _Call) -> None:
        """Ends the call when nothing came for too long: a process that is stopped keeps its sockets open.

        A turn of this loop counts for little, however long it took: a router that was stopped itself
        must not take its own absence for that of its workers.
        """
        silent_s = 0.0
        while silent_s < self._silence_s:
            began = time.monotonic()
            await asyncio.sleep(_TURN_S)
            silent_s += min(time.monotonic() - began, _LONGEST_TURN_S)
            if self._heard:
                self._heard, silent_s = False, 0.0
        call.cancel()

    async def _write(self, call: _Call) -> None:
        try:
            while True:
                await self._wake_writer.wait()
                self._wake_writer.clear()
                while self._outgoing:
                    await call.write(self._outgoing.popleft())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader learns of it too, and has the reason

    async def _deliver(self, batch: worker_pb2.EventBatch) -> None:
        """One dictionary look-up an event. What comes for a request that was forgotten is dropped."""
        now = time.monotonic()
        self.step = max(self.step, batch.step)
        if batch.HasField("load"):
            self.load.reported = batch.load
        listeners, delivered = self._listeners, 0
        for events in (
            batch.started,
            batch.reserved,
            batch.arrived,
            batch.tokens,
            batch.handed_over,
            batch.failed,
        ):
            for message in events:
                listener = listeners.get(message.request_id)
                if listener is not None:
                    listener(Event(message, now, self))
                    delivered += 1
                    if delivered % _AT_ONCE == 0:
                        await asyncio.sleep(0)

    def _end(self, loss: WorkerLost) -> None:
        if self._lost.done():
            return
        self._lost.set_result(loss)
        if not self._speaks.done():
            self._speaks.set_exception(
                RpcUnreachable(self.worker_id, grpc.StatusCode.UNAVAILABLE, loss.reason)
            )
        self._outgoing.clear()
        now = time.monotonic()
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            listener(Event(loss, now, self))
