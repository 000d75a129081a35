"""Llama 3: the whole output is `{"name": ..., "parameters": {...}}`, or several of them with `;` between."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum, auto
from typing import Final

from router.api.generation.output.calls.call_object import CallObject
from router.api.generation.output.parts import Content, Part

_TAG: Final = "<|python_tag|>"
_BETWEEN: Final = frozenset("; ,\t\r\n")


class _State(Enum):
    BEGIN = auto()
    CALL = auto()
    AFTER = auto()
    CONTENT = auto()


class LlamaJsonParser:
    """Calls have no marker: JSON output is a call if it names one of the tools."""

    def __init__(self, names: Set[str]) -> None:
        self._names: Final = names
        self._state = _State.BEGIN
        self._held = ""
        self._call = self._new_call(0)
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            match self._state:
                case _State.BEGIN:
                    text = self._begin(self._held + text)
                case _State.CALL:
                    new, count = self._call.feed(text)
                    parts += new
                    text = text[count:]
                    if self._call.done or (self._call.broken and self._call.begun):
                        self._calls += 1
                        self._held, self._state = "", _State.AFTER
                    elif self._call.broken:
                        text = self._held + self._call.text + text
                        self._held, self._state = "", _State.CONTENT
                case _State.AFTER:
                    text = self._after(text)
                case _State.CONTENT:
                    parts.append(Content(text))
                    text = ""
        return parts

    def finish(self) -> list[Part]:
        match self._state:
            case _State.BEGIN if self._held:
                return [Content(self._held)]
            case _State.CALL if not self._call.begun:
                return [Content(self._held + self._call.text)]
        return []

    def _begin(self, text: str) -> str:
        """The part of `text` that remains to be read."""
        start = text.lstrip()
        if start.startswith(_TAG):
            start = start[len(_TAG) :].lstrip()
        if start.startswith("{"):
            self._held, self._state = text[: len(text) - len(start)], _State.CALL
            return start
        if not start or _TAG.startswith(start):
            self._held = text
            return ""
        self._held, self._state = "", _State.CONTENT
        return text

    def _after(self, text: str) -> str:
        text = self._held + text
        start = text.lstrip("".join(_BETWEEN))
        if start.startswith("{"):
            self._held, self._state = text[: len(text) - len(start)], _State.CALL
            self._call = self._new_call(self._calls)
            return start
        if not start:
            self._held = text
            return ""
        self._held, self._state = "", _State.CONTENT
        return start

    def _new_call(self, index: int) -> CallObject:
        return CallObject(index, self._names.__contains__)
