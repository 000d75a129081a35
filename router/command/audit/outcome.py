"""Exit status of commands that compute answers again."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class NotComparable(Exception):
    """The answer cannot be computed again, or not there; the message says why."""


class Outcome(IntEnum):
    EQUAL = 0
    DIFFERS = 1
    NOT_COMPARABLE = 2
    PARTLY_EQUAL = 3
    """Some tokens were not computed again; the others are equal."""

    @property
    def label(self) -> str:
        return self.name.lower()


_WORST_FIRST = (Outcome.DIFFERS, Outcome.NOT_COMPARABLE, Outcome.PARTLY_EQUAL, Outcome.EQUAL)


def of_all(outcomes: Iterable[Outcome]) -> Outcome:
    """A difference before an answer that cannot be compared, and this before equality."""
    found = set(outcomes)
    return next(each for each in _WORST_FIRST if each in found)
