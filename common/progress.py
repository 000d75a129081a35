"""Progress of long-running work: callbacks, and the time that each stage takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]
"""`progress(stage, done, total)`: `stage` is a short phrase for a person, `done` of `total` are bytes.
Where it is not known how far work is, both are 0. What follows a colon in `stage` is a detail, which
changes."""


def silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""


class StageTimes:
    """The seconds of stages that follow one another."""

    def __init__(self, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`stage` begins now."""
        self._clock = clock
        self._began = [(stage, clock())]

    @property
    def current(self) -> str:
        return self._began[-1][0]

    def enter(self, stage: str) -> None:
        """`stage` begins now, unless it is the current one."""
        if stage != self._began[-1][0]:
            self._began.append((stage, self._clock()))

    def until_now(self) -> tuple[tuple[str, float], ...]:
        """The stages so far, each with its seconds."""
        times = [began for _, began in self._began] + [self._clock()]
        return tuple((stage, times[i + 1] - times[i]) for i, (stage, _) in enumerate(self._began))
