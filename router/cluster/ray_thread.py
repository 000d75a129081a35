"""Threads that call Ray. Only one of them starts and stops it."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class RayThread:
    """Runs blocking calls one after the other, for the life of the process.

    The kernel ends Ray's processes when the thread that started them ends, so that a killed router leaves
    none behind; a thread of a pool could end too early. The thread is a daemon because Ray may wait for
    minutes for a cluster that does not answer, and that must not delay the router's exit.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ray", daemon=True).start()

    async def call(self, function: Callable[[], T]) -> T:
        """Run `call` on the thread. Cancelling the caller stops only the wait, not the call."""
        future: Future[T] = Future()
        self._calls.put((future, function))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, function = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
