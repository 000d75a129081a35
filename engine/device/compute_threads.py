"""As many OpenMP threads as other processes leave cores.

Each operation of a step ends when the last of its threads has ended, and the others spin meanwhile. If one of
them has to wait for a core that another process uses, all do, hundreds of times a step: beside two busy
processes on two cores, decoding with two threads took 25 times as long as with one. With the compiled kernels
the number of threads changes no bit of a result.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from common.cpu_times import CpuTimes, usable_cores

_log = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
"""The operating system counts in units of 10 ms."""
_TOLERATED: Final = 0.25
"""Cores that others may use before a thread is given up for them. On two cores the second thread gains about
a quarter, and computes at a tenth of the speed or less while it shares its core."""
_CALM: Final = 0.12
"""Cores that others may use when a thread is added."""
_CALM_S: Final = 2.0
"""For how long there must be room before threads are added."""
_STALE_S: Final = 1.0
"""A longer period without a step tells little of the present."""
_SOON_S: Final = 0.1
"""Interval after such a period."""
_LOG_INTERVAL_S: Final = 60.0


class ThreadChoice:
    """Number of threads for what other processes use: fewer at once, more after a calm period."""

    def __init__(self, most: int, times: CpuTimes) -> None:
        """`times`: at the start."""
        self.threads = most
        self.others = 0.0
        """Cores that they used last."""
        self._most = most
        self._times = times
        self._calm_since = times.at

    def at(self, times: CpuTimes) -> int:
        """The number of threads from now on."""
        before, self._times = self._times, times
        self.others = times.others_since(before)
        free = times.cores - self.others
        if (fewer := _whole(free + _TOLERATED)) < self.threads:
            self.threads, self._calm_since = fewer, times.at
        elif (more := min(self._most, _whole(free + _CALM))) <= self.threads:
            self._calm_since = times.at
        elif times.at - self._calm_since >= _CALM_S and times.at - before.at <= _STALE_S:
            self.threads, self._calm_since = more, times.at
        return self.threads


class ComputeThreads:
    """Sets torch's number of threads, which the compiled kernels use too, by a ThreadChoice."""

    def __init__(
        self,
        read: Callable[[], CpuTimes | None] = CpuTimes.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most as many threads as torch has now, and as there are cores."""
        self._read, self._clock = read, clock
        self.most: Final = min(torch.get_num_threads(), usable_cores())
        if self.most < torch.get_num_threads():
            torch.set_num_threads(self.most)
        times = read() if self.most > 1 else None
        self._choice = None if times is None else ThreadChoice(self.most, times)
        self._due = clock() + _INTERVAL_S
        self._log_at = -math.inf

    @property
    def threads(self) -> int:
        return self.most if self._choice is None else self._choice.threads

    def adapt(self) -> None:
        """Call it before each step, on the thread that computes. Looks at most every quarter of a second,
        which takes 0.1 ms.
        """
        if self._choice is None or (now := self._clock()) < self._due:
            return
        self._due = now + (_INTERVAL_S if now < self._due + _STALE_S else _SOON_S)
        times = self._read()
        if times is None:
            return
        before, threads = self._choice.threads, self._choice.at(times)
        if threads != before:
            torch.set_num_threads(threads)
            self._tell(before, threads, self._choice.others, now)

    def _tell(self, before: int, threads: int, others: float, now: float) -> None:
        level = logging.DEBUG if now < self._log_at else logging.INFO
        self._log_at = max(self._log_at, now + _LOG_INTERVAL_S) if level == logging.INFO else self._log_at
        _log.log(
            level,
            "computing with %d threads instead of %d: other processes use %.1f cores",
            threads,
            before,
            others,
        )


@cache
def compute_threads() -> ComputeThreads:
    """The process' own. The first call fixes how many there are at most."""
    return ComputeThreads()


def _whole(cores: float) -> int:
    return max(1, math.floor(cores))
