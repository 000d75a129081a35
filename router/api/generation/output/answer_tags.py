"""An answer between tags of its own, after the reasoning: `<response>` of ERNIE, `<answer>` of Hunyuan."""

from __future__ import annotations

from typing import Final

from router.api.generation.output.parts import OutputParser, Part, content
from router.api.generation.output.scan import MarkerFinder, Prose


class TaggedAnswer:
    """Leaves the tags out, with the whitespace within them. Text without the opening tag is unchanged."""

    def __init__(self, opening: str, closing: str, rest: OutputParser | None = None) -> None:
        """`rest`: parses what is in the tags, and around them."""
        self._opening: Final = opening
        self._rest: Final = rest
        self._finder: Final = MarkerFinder(closing)
        self._prose: Final = Prose(strip_start=True)
        self._after: Final = Prose(strip_start=True)
        self._held = ""
        self._tagged: bool | None = None
        """None: not known yet."""

    def feed(self, text: str) -> list[Part]:
        if self._tagged is None:
            self._held += text
            start = self._held.lstrip()
            if len(start) < len(self._opening) and self._opening.startswith(start):
                return []
            self._tagged = start.startswith(self._opening)
            text, self._held = start[len(self._opening) :] if self._tagged else self._held, ""
        return self._passed_on(self._without_end(text) if self._tagged else text)

    def finish(self) -> list[Part]:
        parts = self._passed_on(self._held + self._prose.feed(self._finder.flush()))
        return parts if self._rest is None else parts + self._rest.finish()

    def _without_end(self, text: str) -> str:
        if self._finder.found:
            return self._after.feed(text)
        before, after = self._finder.feed(text)
        return self._prose.feed(before) + (self._after.feed(after) if self._finder.found else "")

    def _passed_on(self, text: str) -> list[Part]:
        if not text:
            return []
        return content(text) if self._rest is None else self._rest.feed(text)
