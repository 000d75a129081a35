"""What an answer is made of, as parsers report it piece by piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

__all__ = ["Arguments", "Call", "Content", "OutputParser", "Part", "Reasoning"]


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call begins; calls of an answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """JSON text that continues the arguments of a call that has begun."""

    index: int
    text: str


Part: TypeAlias = Content | Reasoning | Call | Arguments


class OutputParser(Protocol):
    """Splits the text of one answer. How the text is cut into pieces makes no difference, but to where parts
    of the same kind are cut."""

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """What was held back, for when no more text comes."""
        ...
