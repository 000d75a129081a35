"""Reads one tool call, {"name": ..., "arguments": {...}}, from streamed text."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from router.api.generation.output.parts import Arguments, Call, Part

_SPACE: Final = frozenset(" \t\r\n")
_NAMES: Final = ("name", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters")


class JsonValue:
    """Finds the end of one JSON value by tracking brackets and quotes; does not validate it."""

    __slots__ = ("_depth", "_escaped", "_in_string", "_kind", "done")

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self._in_string = False
        self._kind = ""
        self.done = False

    def take(self, char: str) -> bool:
        """Whether `char` belongs to the value. A number ends before the first character that does not."""
        if not self._kind:
            self._kind = char
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
                self.done = not self._depth
            return True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif self._kind not in '{["' and (char in ",}]" or char in _SPACE):
            self.done = True
            return False
        elif char in "}]":
            self._depth -= 1
            self.done = not self._depth
        return True


class _State(Enum):
    BEGIN = auto()
    KEY = auto()  # or the end
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()  # or the end
    DONE = auto()
    BROKEN = auto()


class CallObject:
    """Feed characters until it is `done` or `broken`.

    Once the name is known, arguments are streamed. Arguments before the name, and those given as a JSON
    string, are passed on when complete. `text` is what was read until the call began.
    """

    __slots__ = (
        "_accepts",
        "_begun",
        "_buffered",
        "_index",
        "_key",
        "_name",
        "_new",
        "_state",
        "_value",
        "_word",
        "text",
    )

    def __init__(self, index: int, accepts: Callable[[str], bool] | None = None) -> None:
        """`accepts`: whether a name is a tool's; None: the text was marked as a call, so any name is
        accepted.

        Without a mark, other keys than those of a call are rejected too.
        """
        self._accepts: Final = accepts
        self._index: Final = index
        self._state = _State.BEGIN
        self._word = ""
        self._key = ""
        self._name: str | None = None
        self._value = JsonValue()
        self._begun = False
        self._buffered = ""
        self._new: list[str] = []
        self.text = ""

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def broken(self) -> bool:
        """Not a call. `text` is all of it, unless the call had `begun`."""
        return self._state is _State.BROKEN

    @property
    def begun(self) -> bool:
        return self._begun

    def feed(self, text: str) -> tuple[list[Part], int]:
        """New parts, and how many characters of `text` were read."""
        parts: list[Part] = []
        count = 0
        for char in text:
            count += 1
            if not self._begun:
                self.text += char
            self._state = self._next(char, parts)
            if self._state is _State.BROKEN or self._state is _State.DONE:
                break
        self._pass_on(parts)
        return parts, count

    def _next(self, char: str, parts: list[Part]) -> _State:
        state = self._state
        if state is _State.IN_VALUE:
            return self._in_value(char, parts)
        if state is _State.IN_KEY:
            self._word += char
            self._value.take(char)
            if not self._value.done:
                return state
            self._key = _string(self._word) or ""
            known = self._key in _NAMES or self._key in _ARGUMENTS
            if self._accepts is not None and not known and self._key not in ("type", "id"):
                return _State.BROKEN
            return _State.COLON
        if char in _SPACE:
            return state
        match state:
            case _State.BEGIN if char == "{":
                return _State.KEY
            case _State.KEY if char == '"':
                self._begin_value(char)
                return _State.IN_KEY
            case _State.COLON if char == ":":
                return _State.VALUE
            case _State.VALUE if char not in ",:}]":
                self._begin_value(char)
                return self._value_begins(parts)
            case _State.COMMA if char == ",":
                return _State.KEY
            case _State.COMMA | _State.KEY if char == "}":
                return self._end(parts)
        return _State.BROKEN

    def _begin_value(self, char: str) -> None:
        self._value = JsonValue()
        self._value.take(char)
        self._word = char

    def _value_begins(self, parts: list[Part]) -> _State:
        if self._key in _ARGUMENTS and self._begun:
            return _State.BROKEN
        if self._key in _ARGUMENTS and self._word == "{" and self._name is not None:
            self._begin(parts)
            self._new.append(self._word)
        return _State.IN_VALUE

    def _in_value(self, char: str, parts: list[Part]) -> _State:
        if self._value.take(char):
            if self._begun and self._key in _ARGUMENTS and self._word == "{":
                self._new.append(char)  # passed on, not kept
            else:
                self._word += char
            return self._value_ends() if self._value.done else _State.IN_VALUE
        after = self._value_ends()
        self._state = after
        return after if after is _State.BROKEN else self._next(char, parts)

    def _value_ends(self) -> _State:
        if self._key in _NAMES:
            self._name = _string(self._word)
            if self._name is None or (self._accepts is not None and not self._accepts(self._name)):
                return _State.BROKEN
        elif self._key in _ARGUMENTS and not self._begun:
            word = self._word
            self._buffered = word if word[0] == "{" else "{}" if word == "null" else _string(word) or ""
            if not self._buffered.lstrip().startswith("{"):
                return _State.BROKEN
        return _State.COMMA

    def _end(self, parts: list[Part]) -> _State:
        if self._name is None:
            return _State.BROKEN
        if not self._begun:
            self._begin(parts)
            self._new.append(self._buffered or "{}")
        return _State.DONE

    def _begin(self, parts: list[Part]) -> None:
        assert self._name is not None
        self._begun = True
        parts.append(Call(self._index, self._name))

    def _pass_on(self, parts: list[Part]) -> None:
        if self._new:
            parts.append(Arguments(self._index, "".join(self._new)))
            self._new.clear()


def _string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
