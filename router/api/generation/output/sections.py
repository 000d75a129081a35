"""Finds the sections of calls in an answer, by the format of the model; what is around them is content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias

from router.api.generation.output.calls.call_reader import CallReader
from router.api.generation.output.parts import Call, Part, content
from router.api.generation.output.scan import Prose, overlap
from router.api.generation.tools import Tool

Reads: TypeAlias = Callable[[int, Mapping[str, Tool]], CallReader]
"""Makes the reader of the call with that number, of the tools by name."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls: in sections, each of which has one call or several."""

    begin: str
    """Before the calls of a section."""
    end: str
    """After them; may be missing at the end of the answer."""
    call: str
    """What a call begins with; empty: whatever follows `begin`."""
    reads: Reads
    bare: bool = False
    """Whether a call may stand outside a section, too."""
    markers: tuple[str, ...] = ()
    """Tokens that must be visible, where they are special tokens of the model, besides `begin` and `end`."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (self.begin, self.call) if self.bare else (self.begin,)


class _State(Enum):
    PROSE = auto()
    SECTION = auto()  # before a call, or the end
    CALL = auto()


class SectionParser:
    """Whitespace between content and a section belongs to neither."""

    def __init__(self, format: CallFormat, tools: Mapping[str, Tool] | None = None) -> None:
        self._format: Final = format
        self._tools: Final = tools or {}
        self._state = _State.PROSE
        self._prose = Prose()
        self._held = ""
        """Text that was read, and whose meaning depends on what follows."""
        self._opened = ""
        """The text since the section began, while it has no call."""
        self._marked = False
        """Whether the calls are in a section, and not bare."""
        self._call: CallReader | None = None
        self._calls = 0

    def feed(self, text: str) -> list[Part]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._call is not None:
            parts += self._counted(self._call.finish())
            if not self._call.begun and (self._opened or not self._marked):
                parts += content(self._prose.feed(self._opened + self._call.text))
        elif self._state is _State.SECTION:
            parts += content(self._prose.feed(self._opened + self._held if self._opened else ""))
        else:
            parts += content(self._prose.feed(self._held))
        if not self._calls:
            parts += content(self._prose.flush())
        return parts

    def _step(self, parts: list[Part]) -> bool:
        match self._state:
            case _State.PROSE:
                return self._read_prose(parts)
            case _State.SECTION:
                return self._read_section(parts)
            case _State.CALL:
                return self._read_call(parts)

    def _read_prose(self, parts: list[Part]) -> bool:
        openings = self._format.openings
        found = [(place, opening) for opening in openings if (place := self._held.find(opening)) >= 0]
        if not found:
            sure = len(self._held) - max(overlap(self._held, opening) for opening in openings)
            parts += content(self._prose.feed(self._held[:sure]))
            self._held = self._held[sure:]
            return False
        place, opening = min(found)
        parts += content(self._prose.feed(self._held[:place]))
        self._marked = opening == self._format.begin
        self._opened = opening if self._marked else ""
        self._held = self._held[place + len(self._opened) :]
        self._state = _State.SECTION
        return True

    def _read_section(self, parts: list[Part]) -> bool:
        text = self._held.lstrip()
        end, call = self._format.end, self._format.call
        if end and text.startswith(end):
            self._leave(len(self._held) - len(text) + len(end), parts)
            return True
        if not text or (end and end.startswith(text)):
            return False
        if text.startswith(call) and (call or self._opened):
            return self._begin_call(text)
        if call.startswith(text):
            return False
        if not self._marked:
            self._leave(len(self._held) - len(text), parts)
            return True
        if self._opened:
            return self._read_beginning(text, parts)
        # Whatever is between calls, or after the last one, means nothing.
        places = [place for marker in filter(None, (end, call)) if (place := text.find(marker)) >= 0]
        kept = max(overlap(text, marker) for marker in (end, call))
        self._held = text[min(places, default=len(text) - kept) :]
        return bool(places)

    def _begin_call(self, text: str) -> bool:
        if self._opened:
            self._opened += self._held[: len(self._held) - len(text)]
        self._held, self._state = text, _State.CALL
        self._call = self._format.reads(self._calls, self._tools)
        return True

    def _read_beginning(self, text: str, parts: list[Part]) -> bool:
        """Between the beginning of a section and its first call there may be a bracket."""
        if not text.startswith("["):
            self._give_back(self._opened, parts)
            return True
        size = len(self._held) - len(text) + 1
        self._opened, self._held = self._opened + self._held[:size], self._held[size:]
        return True

    def _leave(self, size: int, parts: list[Part]) -> None:
        """The section ends with the first `size` characters; one without a call is content."""
        if self._opened:
            parts += content(self._prose.feed(self._opened + self._held[:size]))
        else:
            self._prose = Prose(strip_start=True)
        self._opened, self._held, self._state = "", self._held[size:], _State.PROSE

    def _give_back(self, text: str, parts: list[Part]) -> None:
        """The section was none."""
        parts += content(self._prose.feed(text))
        self._opened, self._state = "", _State.PROSE

    def _read_call(self, parts: list[Part]) -> bool:
        call = self._call
        assert call is not None
        new, self._held = call.feed(self._held)
        parts += self._counted(new)
        if call.begun:
            self._prose.drop()
            self._opened = ""
        if not call.done and not call.broken:
            return False
        self._call = None
        if call.begun or (self._marked and not self._opened):
            self._state = _State.SECTION
        else:
            self._give_back(self._opened + call.text, parts)
        return True

    def _counted(self, parts: list[Part]) -> list[Part]:
        self._calls += sum(isinstance(part, Call) for part in parts)
        return parts
