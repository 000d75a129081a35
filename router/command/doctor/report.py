"""Findings of `router doctor`: rows of a table, each with advice."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

_WIDTH: Final = 110
_NAME: Final = 16


class Verdict(Enum):
    OK = "OK"
    WARN = "WARN"
    """Works, but slower or with less memory than possible."""
    FAIL = "FAIL"
    """Does not work, or is too slow to be useful."""


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    """What was checked, in a word or two."""
    verdict: Verdict
    text: str
    advice: str = ""
    """What to do; empty only if the check passed."""


def ok(name: str, text: str) -> Finding:
    return Finding(name, Verdict.OK, text)


def warn(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Verdict.WARN, text, advice)


def fail(name: str, text: str, advice: str) -> Finding:
    return Finding(name, Verdict.FAIL, text, advice)


def lines_of(finding: Finding) -> Iterable[str]:
    """One row of the table, as wide as a terminal, and the advice below it."""
    indent = " " * (_NAME + 6)
    head = f"{finding.verdict.value:<5}{finding.name:<{_NAME}} "
    yield from textwrap.wrap(head + finding.text, _WIDTH, subsequent_indent=indent, drop_whitespace=True)
    if finding.advice:
        yield from textwrap.wrap(
            f"→ {finding.advice}", _WIDTH, initial_indent=indent, subsequent_indent=indent + "  "
        )


def exit_status(findings: Sequence[Finding]) -> int:
    return 1 if any(finding.verdict is Verdict.FAIL for finding in findings) else 0
