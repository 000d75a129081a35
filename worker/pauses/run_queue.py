"""How long a thread was ready to run and waited for a core, by the kernel's account."""

from __future__ import annotations

import os
import threading
from typing import Final

_PERIOD_S: Final = 0.1
_NS: Final = 1e-9


class RunQueue:
    """Of the thread that calls `open`. Reading the account releases the interpreter lock, so that another
    thread may take it: it is read a few times a second, and not for every step."""

    def __init__(self) -> None:
        self._account: int | None = None
        self._known_s = 0.0
        self._read_at = 0.0

    def open(self) -> None:
        """Without effect where the kernel keeps no account: nobody waits there."""
        try:
            name = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._account = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return

    def close(self) -> None:
        if self._account is not None:
            os.close(self._account)
            self._account = None

    def look(self, now: float) -> None:
        """Note the account, unless it was just noted."""
        if now - self._read_at > _PERIOD_S:
            self.waited_s(now)

    def waited_s(self, now: float) -> float:
        """Seconds since the last call or `look`."""
        if self._account is None:
            return 0.0
        before, self._read_at = self._known_s, now
        self._known_s = int(os.pread(self._account, 64, 0).split()[1]) * _NS
        return self._known_s - before
