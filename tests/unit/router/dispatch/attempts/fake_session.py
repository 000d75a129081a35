"""A session with a worker as attempts use it, without a network, and an event loop with a manual clock."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from common.kv_groups import RequestPages
from router.dispatch.workers.arrivals import ON_TIME
from router.dispatch.workers.events import Loss, Message, SessionListener, WorkerLost
from router.dispatch.workers.liveness import CircuitBreaker, Liveness
from router.dispatch.workers.worker_adapters import WorkerAdapters
from router.placement.account.load import WorkerLoad
from rpc.baton.v1 import worker_pb2

_numbers = count(1)


class ManualClockLoop(asyncio.SelectorEventLoop):
    """Its time is `now`, which only the test changes."""

    now = 0.0

    def time(self) -> float:
        return self.now


class FakeSession:
    """The part of `WorkerSession` that attempts use. Sent commands wait in `commands`."""

    def __init__(self, info: worker_pb2.WorkerInfo, max_running_requests: int) -> None:
        self.info = info
        self.worker_id = info.worker_id
        self.key = f"{info.worker_id}@{next(_numbers)}"
        self.role = info.role
        self.liveness = Liveness.GOOD
        self.on_step: Callable[[worker_pb2.StepWork], None] = lambda _: None
        self.load = WorkerLoad(RequestPages(info.page_size), max_running_requests)
        self.breaker = CircuitBreaker()
        self.alive = True
        self.arrival = ON_TIME
        self.router_was_late = False
        self.commands: deque[worker_pb2.Command] = deque()
        self.listeners: dict[int, SessionListener] = {}
        self.num_sent = 0
        stub: Any = None
        self.adapters = WorkerAdapters(info.worker_id, stub, info)

    def __repr__(self) -> str:
        return self.worker_id

    def listen(self, request_id: int, listener: SessionListener) -> None:
        if self.alive:
            self.listeners[request_id] = listener
        else:
            asyncio.get_running_loop().call_soon(listener.event, self._loss(), time.monotonic())

    def forget(self, request_id: int) -> None:
        self.listeners.pop(request_id, None)

    def send(self, command: worker_pb2.Command) -> None:
        if self.alive:
            self.num_sent += 1
            self.commands.append(command)

    def abort(self, request_id: int) -> None:
        self.send(worker_pb2.Command(abort=worker_pb2.Abort(request_id=request_id)))

    def notify(self, request_id: int, message: Message | worker_pb2.Tokens) -> None:
        """Call the listener of the request, if there still is one."""
        if (listener := self.listeners.get(request_id)) is None:
            return
        if isinstance(message, worker_pb2.Output):
            listener.output(message, time.monotonic())
        else:
            listener.event(message, time.monotonic())

    def lose(self) -> None:
        """End the session: drop pending commands, and tell all listeners that the worker is lost."""
        self.alive = False
        self.commands.clear()
        listeners, self.listeners = list(self.listeners.values()), {}
        for listener in listeners:
            listener.event(self._loss(), time.monotonic())

    def _loss(self) -> WorkerLost:
        return WorkerLost(f"{self.worker_id} ended", Loss.BROKEN)
