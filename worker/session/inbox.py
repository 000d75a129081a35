"""How other threads reach the engine thread: functions, run one by one between two steps."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = ["Inbox"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Posted:
    function: Callable[[], Any]
    answer: Future[Any] | None = None


class Inbox:
    """First in, first out. `run` and `refuse` belong to the reader's thread, the rest to anybody's."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Posted] = queue.SimpleQueue()

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have `function` run; does not wait. What it raises is the reader's problem."""
        self._queue.put(_Posted(lambda: function(*args, **kwargs)))

    def ask(self, function: Callable[[], T]) -> Future[T]:
        """Have `function` run, for what it returns or raises."""
        answer: Future[T] = Future()
        self._queue.put(_Posted(function, answer))
        return answer

    def fail(self, error: BaseException) -> None:
        """Have the reader raise `error`: something that it cannot do without is broken."""
        self.post(_throw, error)

    def run(self, patience: float | None) -> bool:
        """Run all that is there; False if there was nothing.

        Waits up to `patience` seconds for the first (None: for ever).
        """
        some = False
        try:
            while True:
                posted = self._queue.get_nowait() if some else self._queue.get(timeout=patience)
                some = True
                _run(posted)
        except queue.Empty:
            return some

    def refuse(self, error: Exception, until: Callable[[], bool]) -> None:
        """Answer every question with `error`, drop the rest, until `until` says so after one of them."""
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
                raise  # no answer to a question: it is meant for the thread


def _throw(error: BaseException) -> None:
    raise error
