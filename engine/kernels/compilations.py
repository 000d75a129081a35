"""Kernels that this process has compiled or loaded at their first use, and the time that this took."""

from __future__ import annotations

import threading
from typing import Final


class Compilations:
    """Noted on whichever thread compiles; read on any."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.latest = ""
        """Name of the last kernel."""
        self._lock = threading.Lock()

    def note(self, name: str, seconds: float) -> None:
        with self._lock:
            self.count += 1
            self.seconds += seconds
            self.latest = name


COMPILATIONS: Final = Compilations()
"""Of the process: kernels are cached by the libraries for all engines in it."""
