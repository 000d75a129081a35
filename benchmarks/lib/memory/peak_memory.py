"""Peak memory of a piece of work beyond what was in use before it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from types import TracebackType

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class CudaPeak:
    """By torch's allocator: without weights, KV pool and all else that was allocated before."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> CudaPeak:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.cuda.synchronize()
        self.bytes = torch.cuda.max_memory_allocated() - self._before


class CpuPeak:
    """By the process's resident memory, in steps of a page. Linux only."""

    def __init__(self) -> None:
        self.bytes = 0

    def __enter__(self) -> CpuPeak:
        ctypes.CDLL(None).malloc_trim(0)
        _CLEAR.write_text("5")  # resets the peak to the current resident size
        self._before = _resident("VmHWM")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bytes = _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"no {field} in {_STATUS}"
    return int(found[1]) << 10
