"""How a setting is given, checked and explained to the user, and which field of the scheduler it sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")

OPTION: Final = "option"
"""The key of a field's `Option` in its metadata."""


@dataclass(frozen=True, slots=True)
class Option:
    group: str
    """The heading in `--help`."""
    help: str
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    above: float | None = None
    """In place of `least`: smaller than any value in range."""
    aliases: tuple[str, ...] = ()
    """Flags of other servers that mean the same. `flags/foreign_flags.py` has those with other values."""
    scheduler: str | None = None
    """The field of `SchedulerConfig` that a given value sets."""

    def in_range(self, value: float) -> bool:
        """Numbers with a limit are finite."""
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        above = -math.inf if self.above is None else self.above
        limited = (self.least, self.most, self.above) != (None, None, None)
        return not limited or (math.isfinite(value) and least <= value <= most and value > above)

    @property
    def range(self) -> str:
        """For messages: what is in range."""
        unit = {"SECONDS": "a number of seconds", "MS": "milliseconds"}.get(self.metavar or "", "a number")
        if self.above is not None:
            return f"{unit} above {self.above:g}"
        return f"{self.least:g} or more" if self.most is None else f"{self.least:g} to {self.most:g}"


@dataclass(frozen=True, slots=True)
class Heading:
    """Declares the settings under one heading of `--help`, each as the default of a dataclass field."""

    title: str

    def __call__(self, default: T, help: str, metavar: str | None = None, **more: Any) -> T:
        """`more`: other fields of `Option`."""
        return field(default=default, metadata={OPTION: Option(self.title, help, metavar, **more)})


def flag_name(field_name: str) -> str:
    """`--page-size` for `page_size`."""
    return "--" + field_name.replace("_", "-")
