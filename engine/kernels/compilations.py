"""Kernels that this process has compiled or loaded at their first use, and the time that this took."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import Final

logger = logging.getLogger(__name__)

_LATE: Final = 100


class CompilationPhase(Enum):
    STARTING = "starting"
    SERVING = "serving"
    """After the warm-up: a request waits for every kernel that is compiled now."""


class Compilations:
    """Noted on whichever thread compiles; read on any."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.phase = CompilationPhase.STARTING
        self.compiled: Counter[CompilationPhase] = Counter()
        self.loaded: Counter[CompilationPhase] = Counter()
        """Kernels found in the machine's cache, which takes some milliseconds each."""
        self.late: deque[str] = deque(maxlen=_LATE)
        """The last kernels that were compiled or loaded while serving, with their variants."""
        self.on_note: Callable[[str], None] = lambda said: None
        """Called with a phrase for a person, for each kernel that is compiled before serving."""
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return self.compiled.total() + self.loaded.total()

    def serve(self) -> None:
        """The warm-up is over. Call it when all kernels should be there."""
        self.phase = CompilationPhase.SERVING

    def note(self, name: str, seconds: float, *, cached: bool = False, variant: str = "") -> None:
        """`cached`: it was compiled before. `variant`: what tells it from others of its name."""
        phase = self.phase
        with self._lock:
            self.seconds += seconds
            (self.loaded if cached else self.compiled)[phase] += 1
            if phase is CompilationPhase.SERVING:
                self.late.append(f"{name} {variant}".rstrip())
        if phase is CompilationPhase.SERVING:
            done = "loaded" if cached else "compiled"
            logger.warning("%s the kernel %s in %.3f s while serving; %s", done, name, seconds, variant)
        elif not cached:
            self.on_note(f"compiled {self.compiled[phase]} kernels in {self.seconds:.0f} s, last {name}")


COMPILATIONS: Final = Compilations()
"""Compilations of the process: the libraries cache kernels for all engines in it."""
