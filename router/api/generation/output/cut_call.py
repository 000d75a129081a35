"""Whether an answer ends within a tool call."""

from __future__ import annotations

from collections.abc import Sequence

from router.api.generation.output.calls.call_object import JsonValue
from router.api.generation.output.parts import Arguments, Call, Part


class CutCall:
    """Follows the parts of one answer; a stop string or an early end of sequence may cut a call off."""

    __slots__ = ("_value",)

    def __init__(self) -> None:
        self._value: JsonValue | None = None
        """Arguments of the last call, as far as they have begun."""

    def feed(self, parts: Sequence[Part]) -> None:
        for part in parts:
            match part:
                case Call():
                    self._value = None
                case Arguments(_, text):
                    self._read(text)

    def _read(self, text: str) -> None:
        if self._value is None:
            text = text.lstrip()
            if not text:
                return
            self._value = JsonValue()
        for char in text:
            if self._value.done:
                return
            self._value.take(char)

    @property
    def is_open(self) -> bool:
        """Whether the arguments of the last call lack their end."""
        return self._value is not None and not self._value.done
