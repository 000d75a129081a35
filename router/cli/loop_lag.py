"""Measures event loop lag, which delays every client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

__all__ = ["watch_loop"]

_PERIOD_S: Final = 0.25


async def watch_loop(observe: Callable[[float], object]) -> None:
    """Calls `observe` four times a second with the seconds by which a timer was late.

    Runs until cancelled.
    """
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _PERIOD_S
        await asyncio.sleep(_PERIOD_S)
        observe(max(loop.time() - due, 0.0))
