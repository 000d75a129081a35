"""Queue of functions that other threads post to the engine thread; it runs them between two steps."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Posted:
    function: Callable[[], Any]
    answer: Future[Any] | None = None


class Inbox:
    """FIFO. `run` and `refuse` are called by the reader thread, the other methods by any thread."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Posted] = queue.SimpleQueue()

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue `function` without waiting. If it raises, `run` raises."""
        self._queue.put(_Posted(lambda: function(*args, **kwargs)))

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Queue `function`; the future gets its result or exception."""
        answer: Future[T] = Future()
        self._queue.put(_Posted(function, answer))
        return answer

    def fail(self, error: BaseException) -> None:
        """Make `run` raise `error`: a component that the reader depends on has failed."""
        self.post(_throw, error)

    def run(self, timeout_s: float | None, waited: Callable[[], object] = lambda: None) -> bool:
        """Run all queued functions; False if there was none.

        Waits up to `timeout_s` for the first one; None: without a limit. `waited` is called after that.
        """
        try:
            posted: _Posted | None = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            posted = None
        waited()
        some = posted is not None
        while posted is not None:
            _run(posted)
            try:
                posted = self._queue.get_nowait()
            except queue.Empty:
                posted = None
        return some

    def refuse(self, error: Exception, until: Callable[[], bool]) -> None:
        """Discard functions, and set `error` on their futures, until `until()` is true after one of them."""
        while not until():
            posted = self._queue.get()
            if posted.answer is not None and posted.answer.set_running_or_notify_cancel():
                posted.answer.set_exception(error)


def _run(posted: _Posted) -> None:
    if posted.answer is None:
        posted.function()
    elif posted.answer.set_running_or_notify_cancel():
        try:
            posted.answer.set_result(posted.function())
        except BaseException as error:
            posted.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise  # such as SystemExit, which must reach the reader thread too


def _throw(error: BaseException) -> None:
    raise error
