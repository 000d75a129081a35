"""What a router does again and again, whether or not Ray answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn


async def repeat(
    look: Callable[[], Awaitable[None]], interval_s: float, log: logging.Logger, complaint: str
) -> NoReturn:
    """Call `look` for ever. An error that repeats is logged once, after `complaint`."""
    last = ""
    while True:
        try:
            await look()
            last = ""
        except Exception as error:  # Ray's errors share no base class
            if str(error) != last:
                log.warning("%s: %s", complaint, error)
            last = str(error)
        await asyncio.sleep(interval_s)
