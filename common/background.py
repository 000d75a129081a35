"""Background tasks, which are not awaited. Every failure is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Final, TypeVar

T = TypeVar("T")

_log = logging.getLogger(__name__)

_running: Final[set[asyncio.Task[object]]] = set()
"""Event loops have only weak references."""


def supervised(work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
    """A task whose exception is logged, with its traceback, when it is raised."""
    task = asyncio.create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[object]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("the task %r has failed", task.get_name(), exc_info=error)


def in_background(stack: AsyncExitStack, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
    """A supervised task that is cancelled with `stack`."""
    task = supervised(work, name)
    stack.callback(task.cancel)
    return task


async def cancelled(*tasks: asyncio.Task[object]) -> None:
    """Cancel tasks, and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def repeat(
    look: Callable[[], Awaitable[None]],
    interval_s: float,
    log: logging.Logger,
    complaint: str,
    *,
    until: Callable[[], bool] = lambda: False,
    final: tuple[type[Exception], ...] = (),
) -> None:
    """Call `look` again and again, until `until()` is true after a call without an error.

    An error that repeats is logged once, after `complaint`. Raises those of `final`.
    """
    last = ""
    while True:
        try:
            await look()
        except final:
            raise
        except Exception as error:  # Ray's errors share no base class
            text = str(error) or repr(error)
            if text != last:
                log.warning("%s: %s", complaint, text)
                log.debug("%s", complaint, exc_info=error)
            last = text
        else:
            if until():
                return
            last = ""
        await asyncio.sleep(interval_s)
