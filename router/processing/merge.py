"""Merges asynchronous streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

__all__ = ["merge"]

T = TypeVar("T")

_ITEMS_PER_SOURCE = 16


class _Ended(Generic[T]):
    """A source has no more items, or has failed."""

    __slots__ = ("error",)

    def __init__(self, error: Exception | None) -> None:
        self.error = error


async def merge(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all sources as they arrive; those of each source stay in order.

    The first failure of a source is raised here and closes the others, as does closing this stream. A slow
    consumer makes the sources wait.
    """
    queue: asyncio.Queue[T | _Ended[T]] = asyncio.Queue(_ITEMS_PER_SOURCE * len(sources))
    pumps = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if not isinstance(item, _Ended):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                running -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: AsyncGenerator[T, None], queue: asyncio.Queue[T | _Ended[T]]) -> None:
    error: Exception | None = None
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put(item)
    except Exception as failure:
        error = failure
    await queue.put(_Ended(error))
