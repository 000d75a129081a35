"""Harmony, gpt-oss's format: an answer is several messages, each in a channel.

`<|channel|>analysis<|message|>..<|end|>` is reasoning, `final` is the answer, `commentary to=functions.NAME
<|constrain|>json<|message|>{..}<|call|>` a call, and other commentary is content. `<|start|>assistant` comes
between messages, and before the first one at the end of the prompt.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from router.api.generation.output.parts import Arguments, Call, Content, Part, ReasoningPart

MARKERS: Final = (
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
)

_BODY: Final = "<|message|>"
_END: Final = re.compile(r"<\|(?:end|call|return|start)\|>")
_RECIPIENT: Final = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class _State(Enum):
    HEADER = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class HarmonyParser:
    def __init__(self, *, calls: bool, reasoning: bool = True) -> None:
        """`calls`: whether tools were offered; if not, what is addressed to one is content.

        `reasoning`: whether the analysis is reasoning; if not, it is content.
        """
        self._takes_calls: Final = calls
        self._takes_reasoning: Final = reasoning
        self._state = _State.HEADER
        self._header = ""
        self._held = ""
        self._calls = 0
        self.has_reasoning = False
        self.has_answer = False
        """Whether a message other than reasoning has begun."""

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            if self._state is _State.HEADER:
                self._header += text
                header, marker, text = self._header.partition(_BODY)
                if marker:
                    self._begin(header, parts)
                continue
            text = self._held + text
            end = _END.search(text)
            body = text[: end.start()] if end else _without_begun_marker(text)
            self._say(body, parts)
            self._held = "" if end else text[len(body) :]
            if end is None:
                break
            self._state, self._header, text = _State.HEADER, "", text[end.end() :]
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        if self._state is not _State.HEADER:
            self._say(self._held, parts)
        elif _CHANNEL.search(self._header) is None and not (self.has_reasoning or self.has_answer):
            # No message at all: a model that does not know the format.
            self._state = _State.CONTENT
            self._say(self._header, parts)
        return parts

    def _begin(self, header: str, parts: list[Part]) -> None:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        self._header = ""
        if recipient and self._takes_calls:
            self._state = _State.CALL
            parts.append(Call(self._calls, recipient[1]))
            self._calls += 1
        elif channel and channel[1] == "analysis" and self._takes_reasoning:
            self._state = _State.REASONING
            self.has_reasoning = True
        else:
            self._state = _State.CONTENT
        self.has_answer = self.has_answer or self._state is not _State.REASONING

    def _say(self, text: str, parts: list[Part]) -> None:
        if not text:
            return
        match self._state:
            case _State.REASONING:
                parts.append(ReasoningPart(text))
            case _State.CALL:
                parts.append(Arguments(self._calls - 1, text))
            case _:
                parts.append(Content(text))


def _without_begun_marker(text: str) -> str:
    """`text` without an end that may be the beginning of a marker."""
    start = text.rfind("<", max(0, len(text) - len("<|return|>") + 1))
    begun = start >= 0 and any(marker.startswith(text[start:]) for marker in MARKERS)
    return text[:start] if begun else text
