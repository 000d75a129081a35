"""How a setting is explained to the user, and under which heading."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Option"]


@dataclass(frozen=True, slots=True)
class Option:
    group: str
    help: str
    metavar: str | None = None
