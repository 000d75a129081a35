"""Exit status of commands that compute answers again."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Outcome(IntEnum):
    EQUAL = 0
    DIFFERS = 1
    NOT_COMPARABLE = 2

    @property
    def label(self) -> str:
        return self.name.lower()


def of_all(outcomes: Iterable[Outcome]) -> Outcome:
    """A difference before an answer that cannot be compared, and this before equality."""
    found = set(outcomes)
    return next(each for each in (Outcome.DIFFERS, Outcome.NOT_COMPARABLE, Outcome.EQUAL) if each in found)
