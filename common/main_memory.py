"""Main memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_MEMINFO: Final = Path("/proc/meminfo")


def available_memory() -> int:
    """Bytes that can be used without swapping. The page cache counts: it makes room."""
    if _MEMINFO.exists():
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
