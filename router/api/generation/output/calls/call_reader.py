"""How the text of one tool call is read, and the two readers whose arguments are JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from router.api.generation.output.calls.call_object import CallObject, JsonValue
from router.api.generation.output.parts import Arguments, Call, Part

_LONGEST_NAME: Final = 512
"""Characters between the markers of a name; more are content."""


class CallReader(Protocol):
    """Reads one call from streamed text. Text is fed until it is `done` or `broken`."""

    @property
    def done(self) -> bool: ...

    @property
    def broken(self) -> bool:
        """The text is no call, or no longer one."""

    @property
    def begun(self) -> bool:
        """Whether the call was passed on. Otherwise `text` is all that was read."""

    @property
    def text(self) -> str: ...

    def feed(self, text: str) -> tuple[list[Part], str]:
        """New parts; and what follows the call, once it is done or broken."""
        ...

    def finish(self) -> list[Part]:
        """The parts held back, where the answer ends within the call."""
        ...


class ObjectReader:
    """`{"name": ..., "arguments": {...}}`."""

    def __init__(self, index: int) -> None:
        self._call: Final = CallObject(index)

    @property
    def done(self) -> bool:
        return self._call.done

    @property
    def broken(self) -> bool:
        return self._call.broken

    @property
    def begun(self) -> bool:
        return self._call.begun

    @property
    def text(self) -> str:
        return self._call.text

    def feed(self, text: str) -> tuple[list[Part], str]:
        parts, count = self._call.feed(text)
        return parts, text[count:]

    def finish(self) -> list[Part]:
        return []


class NamedObjectReader:
    """The name between two markers, then a JSON object."""

    def __init__(self, index: int, before: str, after: str, named: Callable[[str], str] = str.strip) -> None:
        """`named`: the tool's name in what stands between the markers `before` and `after`."""
        self._index: Final = index
        self._before: Final = before
        self._after: Final = after
        self._named: Final = named
        self._value = JsonValue()
        self._in_value = False
        self.text = ""
        self.done = False
        self.broken = False
        self.begun = False

    def feed(self, text: str) -> tuple[list[Part], str]:
        if self.begun:
            return self._arguments(text)
        self.text += text
        name, marker, rest = self.text.removeprefix(self._before).partition(self._after)
        if len(name) > _LONGEST_NAME:
            self.broken = True
            self.text, rest = self.text[:_LONGEST_NAME], self.text[_LONGEST_NAME:]
            return [], rest
        if not marker:
            return [], ""
        self.begun, self.text = True, ""
        parts, rest = self._arguments(rest)
        return [Call(self._index, self._named(name)), *parts], rest

    def finish(self) -> list[Part]:
        return []

    def _arguments(self, text: str) -> tuple[list[Part], str]:
        if not self._in_value:
            text = text[text.find("{") :] if "{" in text else ""  # after a fence of Markdown, for example
            self._in_value = bool(text)
        for end, char in enumerate(text, start=1):
            self._value.take(char)
            if self._value.done:
                self.done = True
                return [Arguments(self._index, text[:end])], text[end:]
        return ([Arguments(self._index, text)] if text else []), ""
