"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` each."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from router.api.generation.output.calls.call_object import CallObject, JsonValue
from router.api.generation.output.parts import Arguments, Call, Part, content
from router.api.generation.output.scan import MarkerFinder, Prose

_CALLS: Final = "[TOOL_CALLS]"
MARKERS: Final = (_CALLS, "[ARGS]", "[CALL_ID]")
"""Control tokens that the parser must see."""
_SPACE: Final = frozenset(" \t\r\n")


class _State(Enum):
    PROSE = auto()
    BEGIN = auto()  # after the marker
    BETWEEN = auto()  # in the list, before or after a call
    CALL = auto()
    NAME = auto()
    ARGUMENTS = auto()
    AFTER = auto()


class MistralParser:
    """Text after the calls is dropped, since the model's template has nothing there."""

    def __init__(self) -> None:
        self._state = _State.PROSE
        self._prose = Prose()
        self._finder = MarkerFinder(_CALLS)
        self._call = CallObject(0)
        self._value = JsonValue()
        self._name = ""
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            match self._state:
                case _State.PROSE | _State.AFTER:
                    before, text = self._finder.feed(text)
                    if self._state is _State.PROSE:
                        parts += content(self._prose.feed(before))
                    if self._finder.found:
                        self._prose.drop()
                        self._state, self._name = _State.BEGIN, ""
                case _State.CALL:
                    new, count = self._call.feed(text)
                    parts += new
                    text = text[count:]
                    if self._call.done or (self._call.broken and self._call.begun):
                        self._calls += 1
                        self._state = _State.BETWEEN
                    elif self._call.broken:
                        parts += content(_CALLS + "[" + self._call.text)
                        self._look_on()
                case _State.ARGUMENTS:
                    text = self._arguments(text, parts)
                case _:
                    self._character(text[0], parts)
                    text = text[1:]
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        match self._state:
            case _State.PROSE:
                parts += content(self._prose.feed(self._finder.flush()) + self._prose.flush())
            case _State.CALL if not self._call.begun:
                parts += content(_CALLS + "[" + self._call.text)
            case _State.NAME:
                parts += content(_CALLS + self._name)
        return parts

    def _character(self, char: str, parts: list[Part]) -> None:
        match self._state:
            case _State.BEGIN if char == "[":
                self._state = _State.BETWEEN
            case _State.BEGIN | _State.NAME if char == "{":
                self._begin_named(parts)
            case _State.BEGIN if char not in _SPACE:
                self._name, self._state = char, _State.NAME
            case _State.NAME:
                self._name += char
            case _State.BETWEEN if char == "{":
                self._state, self._call = _State.CALL, CallObject(self._calls)
                self._call.feed(char)
            case _State.BETWEEN if char == "]":
                self._look_on()

    def _begin_named(self, parts: list[Part]) -> None:
        name = self._name.partition("[")[0].strip()
        parts += [Call(self._calls, name), Arguments(self._calls, "{")]
        self._value = JsonValue()
        self._value.take("{")
        self._state = _State.ARGUMENTS

    def _arguments(self, text: str, parts: list[Part]) -> str:
        for end, char in enumerate(text, start=1):
            self._value.take(char)
            if self._value.done:
                parts.append(Arguments(self._calls, text[:end]))
                self._calls += 1
                self._look_on()
                return text[end:]
        parts.append(Arguments(self._calls, text))
        return ""

    def _look_on(self) -> None:
        self._state, self._finder = _State.AFTER, MarkerFinder(_CALLS)
