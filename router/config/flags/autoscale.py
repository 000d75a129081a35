"""Parses the bounds of --autoscale."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

__all__ = ["Bounds", "WrongBounds", "bounds_of"]

_BOUNDS: Final = re.compile(r"(prefill|decode)=(\d+):(\d+)")


class WrongBounds(ValueError):
    """The message names the part that is wrong and what it should be."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the number of workers of a role."""

    least: int
    most: int


def bounds_of(setting: str | None) -> dict[str, Bounds]:
    """By role, from `decode=1:4 prefill=1:2`; empty without a setting. Raises WrongBounds."""
    bounds: dict[str, Bounds] = {}
    for word in shlex.split(setting or ""):
        match = _BOUNDS.fullmatch(word)
        if match is None:
            raise WrongBounds(f"{word} is not ROLE=LEAST:MOST; try decode=1:4, or 'decode=1:4 prefill=1:2'")
        role, least, most = match[1], int(match[2]), int(match[3])
        if not least <= most or not most:
            raise WrongBounds(f"{word}: the second number is the larger one, and 1 or more")
        if role in bounds:
            raise WrongBounds(f"{word}: {role} is given twice")
        bounds[role] = Bounds(least, most)
    return bounds
