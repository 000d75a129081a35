"""Building blocks of parsers: text up to a marker, and text with held-back trailing whitespace."""

from __future__ import annotations

from typing import Final


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` may begin `marker`."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


class MarkerFinder:
    """Passes text up to `marker`. Text that may be the start of the marker is held back."""

    __slots__ = ("_held", "_marker", "found")

    def __init__(self, marker: str) -> None:
        self._marker: Final = marker
        self._held = ""
        self.found = False

    def feed(self, text: str) -> tuple[str, str]:
        """Text before the marker, and text after it; the latter is empty until `found`."""
        text = self._held + text
        self._held = ""
        before, marker, after = text.partition(self._marker)
        if marker:
            self.found = True
            return before, after
        sure = len(text) - overlap(text, self._marker)
        self._held = text[sure:]
        return text[:sure], ""

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Prose:
    """Text whose leading and trailing whitespace may be dropped, depending on what follows."""

    __slots__ = ("_held", "_started", "_strip_start")

    def __init__(self, *, strip_start: bool = False) -> None:
        self._strip_start: Final = strip_start
        self._started = False
        self._held = ""

    def feed(self, text: str) -> str:
        """Text that can be shown. Costs O(text and held text)."""
        text = self._held + text
        if self._strip_start and not self._started:
            text = text.lstrip()
        shown = text.rstrip()
        self._held = text[len(shown) :]
        self._started = self._started or bool(shown)
        return shown

    def drop(self) -> None:
        """Drop the trailing whitespace."""
        self._held = ""

    def flush(self) -> str:
        """The whitespace at the end."""
        held, self._held = self._held, ""
        return held
