"""How a setting is explained to the user, under which heading, and by which flag it is given."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Option", "flag_name"]


@dataclass(frozen=True, slots=True)
class Option:
    group: str
    """The heading in `--help`."""
    help: str
    metavar: str | None = None


def flag_name(field_name: str) -> str:
    """`--page-size` for `page_size`."""
    return "--" + field_name.replace("_", "-")
