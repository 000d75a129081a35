"""Pauses of a model: which requests are refused, and which wait."""

from __future__ import annotations

import asyncio
from enum import Enum

from router.errors import Unavailable

_RETRY_AFTER_S = 1.0


class PauseMode(Enum):
    """What becomes of the requests that a pause meets."""

    ABORT = "abort"
    """They end at once, with the tokens that they have."""
    WAIT = "wait"
    """They are computed to their end."""
    KEEP = "keep"
    """They are taken from the workers, and go on after the pause: their KV is computed again."""


class PauseGate:
    """State of one model at one router."""

    def __init__(self) -> None:
        self.mode: PauseMode | None = None
        """None: the model is not paused."""
        self._open = asyncio.Event()
        self._open.set()

    @property
    def holds(self) -> bool:
        """Whether no attempt may begin."""
        return self.mode in (PauseMode.ABORT, PauseMode.KEEP)

    def close(self, mode: PauseMode) -> None:
        self.mode = mode
        self._open.clear()

    def open(self) -> None:
        self.mode = None
        self._open.set()

    def check_new(self) -> None:
        """Raise Unavailable for a request that comes during a pause, unless it waits."""
        if self.mode in (PauseMode.ABORT, PauseMode.WAIT):
            raise self._paused()

    async def passed(self, seconds: float) -> bool:
        """Wait until an attempt may begin; False after `seconds`. Raises Unavailable where it is aborted."""
        while self.holds:
            if self.mode is PauseMode.ABORT:
                raise self._paused()
            try:
                async with asyncio.timeout(None if seconds == float("inf") else seconds):
                    await self._open.wait()
            except TimeoutError:
                return False
        return True

    def _paused(self) -> Unavailable:
        return Unavailable(
            "The service is paused for an update of its weights.",
            code="paused",
            retry_after_s=_RETRY_AFTER_S,
            public=True,
        )
