"""Parts of an answer, as parsers stream them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call begins; calls of an answer are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """JSON text that continues the arguments of the current call."""

    index: int
    text: str


Part: TypeAlias = Content | ReasoningPart | Call | Arguments


def content(text: str) -> list[Part]:
    """No part if there is no text."""
    return [Content(text)] if text else []


class OutputParser(Protocol):
    """Splits the text of one answer into parts.

    The result does not depend on how the text is chunked, except for the borders between parts of the same
    kind.
    """

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """The text held back; call it at the end."""
        ...
