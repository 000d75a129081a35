"""Calls whose arguments stand between tags: `<function=NAME><parameter=KEY>VALUE</parameter></function>`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from router.api.generation.output.calls.argument_values import dumped, is_text, json_of, types_of
from router.api.generation.output.parts import Arguments, Call, Part
from router.api.generation.output.scan import overlap
from router.api.generation.tools import Tool


@dataclass(frozen=True, slots=True)
class CallTags:
    """How a call is written. Whitespace between tags means nothing."""

    name: str
    """Before the name."""
    name_ends: tuple[str, ...]
    """After the name, whichever comes first."""
    key: str
    """Before the name of an argument."""
    key_end: str
    value: str
    """After `key_end`, before the value; may be empty."""
    value_end: str
    end: str
    """After the last argument."""
    keeps_ends: bool = False
    """Whether `name_ends` and `end` are tags of what follows."""
    pads: bool = False
    """Whether a value has a newline at either end that does not belong to it."""


_LONGEST_NAME: Final = 512


class _State(Enum):
    NAME = auto()
    ARGUMENTS = auto()  # before an argument, or the end
    KEY = auto()
    VALUE = auto()
    TEXT = auto()  # a string, which is passed on as it comes
    DONE = auto()


class TaggedCallReader:
    """A value ends at its tag if an argument or the end of the call follows: text may hold the tag, too."""

    def __init__(self, index: int, tags: CallTags, tools: Mapping[str, Tool]) -> None:
        self._index: Final = index
        self._tags: Final = tags
        self._tools: Final = tools
        self._tool: Tool | None = None
        self._types: frozenset[str] = frozenset()
        self._state = _State.NAME
        self._held = ""
        """Text that was read and whose meaning depends on what follows."""
        self._read = 0
        """How much of it belongs to a name that is none."""
        self._searched = 0
        """Where the search for the end of the value goes on."""
        self._first = True
        self._begins = False
        """Whether nothing of the string was passed on."""
        self._new: list[str] = []
        self.broken = False
        self.begun = False

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def text(self) -> str:
        return self._held

    def feed(self, text: str) -> tuple[list[Part], str]:
        self._held += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        rest = ""
        if self.done or self.broken:
            self._held, rest = self._held[: self._read], self._held[self._read :]
        return parts + self._passed_on(), rest

    def finish(self) -> list[Part]:
        if self._state is _State.TEXT:
            self._pass_text(self._held)
        return self._passed_on()

    def _step(self, parts: list[Part]) -> bool:
        """Whether something was read, so that there may be more."""
        match self._state:
            case _State.NAME:
                return self._name(parts)
            case _State.ARGUMENTS:
                return self._argument()
            case _State.KEY:
                return self._key()
            case _State.VALUE | _State.TEXT:
                return self._value()
            case _State.DONE:
                return False

    def _name(self, parts: list[Part]) -> bool:
        begin = len(self._tags.name)
        ends = [(place, end) for end in self._tags.name_ends if (place := self._held.find(end, begin)) >= 0]
        place, end = min(ends, default=(len(self._held), ""))
        name = self._held[begin:place].strip()
        if place > _LONGEST_NAME or (end and (not name or any(char in name for char in "<>{}\n"))):
            self.broken, self._read = True, min(place + len(end), _LONGEST_NAME)
        if self.broken or not end:
            return False
        self._held = self._held[place if self._tags.keeps_ends and end != "\n" else place + len(end) :]
        self._tool = self._tools.get(name)
        self.begun = True
        parts.append(Call(self._index, name))
        self._state = _State.ARGUMENTS
        return True

    def _argument(self) -> bool:
        self._held = self._held.lstrip()
        if self._held.startswith(self._tags.key):
            self._held = self._held[len(self._tags.key) :]
            self._state = _State.KEY
            return True
        if self._held.startswith(self._tags.end):
            self._new.append("{}" if self._first else "}")
            self._held = self._held if self._tags.keeps_ends else self._held[len(self._tags.end) :]
            self._state = _State.DONE
        elif self._held and not _may_begin(self._held, (self._tags.key, self._tags.end)):
            self.broken = True
        return False

    def _key(self) -> bool:
        key, end, rest = self._held.partition(self._tags.key_end)
        opened = rest.lstrip() if self._tags.value else rest
        if not end or not opened.startswith(self._tags.value):
            self.broken = bool(end) and not self._tags.value.startswith(opened)
            return False
        key = key.strip()
        self._held = opened[len(self._tags.value) :]
        self._types = types_of(self._tool, key)
        self._new.append(("{" if self._first else ", ") + dumped(key) + ": ")
        self._first, self._begins = False, True
        self._state = _State.TEXT if is_text(self._types) else _State.VALUE
        if self._state is _State.TEXT:
            self._new.append('"')
        return True

    def _value(self) -> bool:
        """Search the end of the value; pass on what belongs to a string in any case."""
        end, start = self._tags.value_end, self._searched
        while (place := self._held.find(end, start)) >= 0:
            after = self._held[place + len(end) :].lstrip()
            if after.startswith((self._tags.key, self._tags.end)):
                self._end_value(self._held[:place])
                self._held, self._searched = after, 0
                self._state = _State.ARGUMENTS
                return True
            if _may_begin(after, (self._tags.key, self._tags.end)):
                break
            start = place + 1
        self._searched = place if place >= 0 else max(start, len(self._held) - len(end) + 1)
        if self._state is _State.TEXT:
            # The newline before the tag may be padding.
            sure = place if place >= 0 else len(self._held) - overlap(self._held, end)
            if self._tags.pads and self._held[:sure].endswith("\n"):
                sure -= 1
            if sure > 0 and not (self._begins and self._tags.pads and self._held[:sure] == "\n"):
                self._pass_text(self._held[:sure])
                self._held, self._searched = self._held[sure:], max(0, self._searched - sure)
        return False

    def _end_value(self, text: str) -> None:
        if self._tags.pads:
            text = text.removesuffix("\n")
        if self._state is _State.TEXT:
            self._pass_text(text)
            self._new.append('"')
            return
        if self._tags.pads:
            text = text.removeprefix("\n")
        self._new.append(json_of(text, self._types))

    def _pass_text(self, text: str) -> None:
        if self._begins and self._tags.pads:
            text = text.removeprefix("\n")
        self._begins = False
        self._new.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def _passed_on(self) -> list[Part]:
        text, self._new = "".join(self._new), []
        return [Arguments(self._index, text)] if text else []


def _may_begin(text: str, markers: tuple[str, ...]) -> bool:
    """Whether more text could make `text` begin with a marker."""
    return any(marker.startswith(text) for marker in markers)
