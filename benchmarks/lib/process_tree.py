"""Peak memory of a process and all its descendants."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

_INTERVAL_S = 2.0


class PeakMemory:
    """Watches a process tree from a thread for the length of a `with` block.

    >>> with PeakMemory(pid) as memory:
    ...     work()
    >>> memory.peak_bytes
    """

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, tree_memory(self._root))
            if self._done.wait(_INTERVAL_S):
                return


def tree_memory(root: psutil.Process) -> int:
    """Bytes of `root` and its descendants; a page that several share counts once (PSS)."""
    total = 0
    try:
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended between the two calls
    return total
