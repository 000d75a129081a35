"""Ends a task's wait from another task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["Interrupt"]

T = TypeVar("T")


class Interrupt:
    """Makes the current `wait` and all later ones raise once triggered.

    A wait costs two assignments: no second task, no event. `trigger` cancels the waiting task, and `wait`
    turns the cancellation into the error, like asyncio.timeout().
    """

    __slots__ = ("_error", "_waiting")

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiting: asyncio.Task[object] | None = None

    def trigger(self, error: Exception) -> None:
        """Raise `error` in `wait`. Only the first call counts."""
        if self._error is None:
            self._error = error
            if self._waiting is not None:
                self._waiting.cancel()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """The result of `awaitable`. One wait at a time. Other cancellations are passed on."""
        if (error := self._error) is not None:
            raise error
        task = self._waiting = asyncio.current_task()
        try:
            return await awaitable
        except asyncio.CancelledError:
            if self._error is None or task is None or task.uncancel() > 0:
                raise
            raise self._error from None
        finally:
            self._waiting = None
