"""Where work runs whose cost a client chooses: small work inline, large work in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

_INLINE_BYTES: Final = 32 << 10
"""A body or message of this size takes some milliseconds to parse, validate and convert."""

_T = TypeVar("_T")


async def off_loop(size: int, work: Callable[[], _T]) -> _T:
    """What `work` returns or raises; `size`: bytes that it goes through."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)
