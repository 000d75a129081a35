"""Finds stop strings in streamed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final


class StopFinder:
    """Passes text up to the first stop string, of which no part is ever shown.

    Text that may be the start of a stop string is held back. The stop string that is complete first wins; of
    several that end at the same character, the longest. The result does not depend on how the text is
    chunked. Costs a few comparisons per character and stop string, independent of the length of the text.
    """

    __slots__ = ("_held", "_patterns", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops` must not contain an empty string."""
        self._patterns: Final = [_Pattern(stop) for stop in stops]
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found; nothing may be fed after it."""

    def feed(self, text: str) -> str:
        """New text that is safe to show."""
        if not self._held and not any(pattern.first in text for pattern in self._patterns):
            return text
        for end, char in enumerate(text, start=1):
            complete = [pattern.text for pattern in self._patterns if pattern.advance(char)]
            if complete:
                self.matched = max(complete, key=len)
                shown = self._held + text[:end]
                self._held = ""
                return shown[: -len(self.matched)]
        pending = self._held + text
        cut = len(pending) - max(pattern.progress for pattern in self._patterns)
        self._held = pending[cut:]
        return pending[:cut]

    def flush(self) -> str:
        """The text held back; call it at the end."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """Knuth-Morris-Pratt: tracks the longest prefix of the pattern that the text read so far ends with."""

    __slots__ = ("_fallback", "first", "progress", "text")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.first: Final = text[0]
        self.progress = 0
        self._fallback: Final = _borders(text)

    def advance(self, char: str) -> bool:
        """Read one character; True when the pattern is complete."""
        progress = self.progress
        while progress and self.text[progress] != char:
            progress = self._fallback[progress - 1]
        if self.text[progress] == char:
            progress += 1
        self.progress = progress
        return progress == len(self.text)


def _borders(text: str) -> list[int]:
    """At i: the length of the longest proper prefix of text[: i + 1] that also ends it."""
    borders = [0] * len(text)
    length = 0
    for i in range(1, len(text)):
        while length and text[i] != text[length]:
            length = borders[length - 1]
        if text[i] == text[length]:
            length += 1
        borders[i] = length
    return borders
