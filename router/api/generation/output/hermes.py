"""Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from router.api.generation.output.call_object import CallObject
from router.api.generation.output.parts import Part, content
from router.api.generation.output.scan import MarkerFinder, Prose

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"


class _State(Enum):
    PROSE = auto()
    CALL = auto()
    CLOSING = auto()


class HermesParser:
    """Text around calls is content, without the whitespace between it and a call."""

    def __init__(self) -> None:
        self._state = _State.PROSE
        self._prose = Prose()
        self._finder = MarkerFinder(_OPEN)
        self._call = CallObject(0)
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            match self._state:
                case _State.PROSE:
                    before, text = self._finder.feed(text)
                    parts += content(self._prose.feed(before))
                    if self._finder.found:
                        self._state, self._call = _State.CALL, CallObject(self._calls)
                case _State.CALL:
                    new, count = self._call.feed(text)
                    parts += new
                    text = text[count:]
                    if self._call.done or (self._call.broken and self._call.begun):
                        self._calls += 1
                        self._state, self._finder = _State.CLOSING, MarkerFinder(_CLOSE)
                    elif self._call.broken:
                        parts += content(self._prose.feed(_OPEN + self._call.text))
                        self._state, self._finder = _State.PROSE, MarkerFinder(_OPEN)
                case _State.CLOSING:
                    _, text = self._finder.feed(text)
                    if self._finder.found:
                        self._prose = Prose(strip_start=True)
                        self._state, self._finder = _State.PROSE, MarkerFinder(_OPEN)
        if self._state is _State.CALL and self._call.begun:
            self._prose.drop()
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._state is _State.PROSE:
            parts += content(self._prose.feed(self._finder.flush()))
        elif self._state is _State.CALL and not self._call.begun:
            parts += content(self._prose.feed(_OPEN + self._call.text))
        if not self._calls:
            parts += content(self._prose.flush())
        return parts
