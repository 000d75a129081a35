"""Work beside serving, which ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import TypeVar

T = TypeVar("T")


def in_background(stack: AsyncExitStack, work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
    """A task that is cancelled with `stack`."""
    task = asyncio.create_task(work, name=name)
    stack.callback(task.cancel)
    return task
