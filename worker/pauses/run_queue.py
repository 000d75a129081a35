"""How long a thread was ready to run and waited for a core, by the kernel's account."""

from __future__ import annotations

import os
import threading
from typing import Final

_NS: Final = 1e-9


class RunQueue:
    """Wait in the run queue of the thread that calls `open`. Not to be read for every step: reading the
    account releases the interpreter lock, and another thread may take it.
    """

    def __init__(self) -> None:
        self._account: int | None = None
        self._known_s = 0.0

    def open(self) -> None:
        """Without effect where the kernel does not report run queue delays: they count as 0."""
        try:
            name = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._account = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return

    def close(self) -> None:
        if self._account is not None:
            os.close(self._account)
            self._account = None

    def waited_s(self) -> float:
        """Seconds since the last call."""
        if self._account is None:
            return 0.0
        before = self._known_s
        self._known_s = int(os.pread(self._account, 64, 0).split()[1]) * _NS
        return self._known_s - before
