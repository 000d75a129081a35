"""Progress callbacks of long-running work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Progress", "silent"]

Progress: TypeAlias = Callable[[str, int, int], None]
"""`progress(stage, done, total)`: `stage` is a short phrase for a person, `done` of `total` are bytes.
Where it is not known how far work is, both are 0."""


def silent(stage: str, done: int, total: int) -> None:
    """Ignores progress."""
