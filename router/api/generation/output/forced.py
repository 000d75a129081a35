"""Parsers of forced calls that are not in the model's own format: the whole output is JSON."""

from __future__ import annotations

from typing import Final

from router.api.generation.output.calls.call_object import CallObject
from router.api.generation.output.parts import Arguments, Call, OutputParser, Part


class NamedCallParser:
    """The whole text is the arguments of one call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def feed(self, text: str) -> list[Part]:
        if not text:
            return []
        begin: list[Part] = [] if self._begun else [Call(0, self._name)]
        self._begun = True
        return [*begin, Arguments(0, text)]

    def finish(self) -> list[Part]:
        return []


class RequiredCallsParser:
    """A list of {"name": ..., "arguments": ...}."""

    def __init__(self) -> None:
        self._call: CallObject | None = None
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            if self._call is None:
                _, brace, rest = text.partition("{")
                if not brace:
                    break
                self._call, text = CallObject(self._calls), brace + rest
            new, count = self._call.feed(text)
            parts += new
            text = text[count:]
            if self._call.done or self._call.broken:
                self._calls += self._call.begun
                self._call = None
        return parts

    def finish(self) -> list[Part]:
        return []


class FirstCallOnly:
    """Drops every call after the first."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser: Final = parser

    def feed(self, text: str) -> list[Part]:
        return _first(self._parser.feed(text))

    def finish(self) -> list[Part]:
        return _first(self._parser.finish())


def _first(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not (isinstance(part, Call | Arguments) and part.index > 0)]
