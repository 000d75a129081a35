"""For parallel_tool_calls: false."""

from __future__ import annotations

from typing import Final

from router.processing.output.parts import Arguments, Call, OutputParser, Part


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
