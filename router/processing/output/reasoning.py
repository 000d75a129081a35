"""Reasoning between `<think>` and `</think>` at the start of an answer."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from router.processing.output.parts import Content, OutputParser, Part, Reasoning
from router.processing.output.scan import MarkerFinder, Prose

__all__ = ["ReasoningParser", "begins_inside"]

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


def begins_inside(prompt: str) -> bool:
    """Whether the prompt ends inside reasoning that the template has opened."""
    return prompt.rstrip().endswith(_OPEN)


class _State(Enum):
    BEGIN = auto()
    REASONING = auto()
    ANSWER = auto()


class ReasoningParser:
    """Whitespace around the tags belongs to neither part. The answer goes to `rest`, if there is one."""

    def __init__(self, rest: OutputParser | None = None, *, inside: bool = False) -> None:
        self._rest: Final = rest
        self._state = _State.REASONING if inside else _State.BEGIN
        self._held = ""
        self._finder: Final = MarkerFinder(_CLOSE)
        self._reasoning: Final = Prose(strip_start=True)
        self._strip = False

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        if self._state is _State.BEGIN:
            text = self._begin(self._held + text)
        if self._state is _State.REASONING and text:
            before, text = self._finder.feed(text)
            if thought := self._reasoning.feed(before):
                parts.append(Reasoning(thought))
            if self._finder.found:
                self._state, self._strip = _State.ANSWER, True
        if self._state is _State.ANSWER:
            if self._strip:
                text = text.lstrip()
                self._strip = not text
            parts += self._answer(text)
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        match self._state:
            case _State.BEGIN:
                parts += self._answer(self._held)
            case _State.REASONING:
                if thought := self._reasoning.feed(self._finder.flush()):
                    parts.append(Reasoning(thought))
        return parts if self._rest is None else parts + self._rest.finish()

    def _begin(self, text: str) -> str:
        start = text.lstrip()
        if start.startswith(_OPEN):
            self._held, self._state = "", _State.REASONING
            return start[len(_OPEN) :]
        if _OPEN.startswith(start):
            self._held = text
            return ""
        self._held, self._state = "", _State.ANSWER
        return text

    def _answer(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Content(text)] if self._rest is None else self._rest.feed(text)
