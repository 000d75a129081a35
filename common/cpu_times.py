"""CPU time on the cores that this process may use: all of it, and this process' part."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_STAT: Final = Path("/proc/stat")
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IDLE_FIELDS: Final = (3, 4)
"""idle and iowait; the others, steal included, are time that nothing else can have."""
_NUM_FIELDS: Final = 8
"""The two after them, time of guests, are counted as user time already."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Counters at a moment; the difference of two is what a period took."""

    at: float
    """time.monotonic()."""
    cores: int
    """Cores that this process may use."""
    busy: float
    """CPU seconds that were spent on them, by any process."""
    own: float
    """CPU seconds of this process, and of its children that have ended."""

    @classmethod
    def now(cls) -> Self | None:
        """None where the operating system does not tell (other than Linux, some sandboxes)."""
        try:
            lines = _STAT.read_text().splitlines()
        except OSError:
            return None
        times = busy_of(lines, os.sched_getaffinity(0))
        if times is None:
            return None
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = time.process_time() + children.ru_utime + children.ru_stime
        return cls(time.monotonic(), times[0], times[1], own)

    def others_since(self, before: Self) -> float:
        """Cores that other processes used on average since then."""
        others = (self.busy - before.busy) - (self.own - before.own)
        return min(max(others / max(self.at - before.at, 1e-3), 0.0), float(self.cores))


def busy_of(lines: list[str], cores: set[int]) -> tuple[int, float] | None:
    """From the lines of /proc/stat: how many of `cores` are listed, and the seconds for which they were busy.

    None if they have not even been idle: a sandbox reports zeros.
    """
    found, busy, total = 0, 0, 0
    for line in lines[1:]:
        name, *fields = line.split()
        if not name.startswith("cpu"):
            break
        if int(name[3:]) in cores:
            ticks = [int(field) for field in fields[:_NUM_FIELDS]]
            found += 1
            total += sum(ticks)
            busy += sum(ticks) - sum(ticks[index] for index in _IDLE_FIELDS)
    return (found, busy / _TICKS) if total else None


def usable_cores() -> int:
    """Cores that this process can compute on at a time: its affinity, and a container's quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota = cores_of_quota(_QUOTA.read_text())
    except OSError:
        quota = None
    return cores if quota is None else max(1, min(cores, round(quota)))


def cores_of_quota(text: str) -> float | None:
    """The content of cgroup's cpu.max; None: no limit."""
    quota, _, period = text.partition(" ")
    return None if quota == "max" else int(quota) / int(period)
