"""Reasoning between two tags at the start of an answer, in most models `<think>` and `</think>`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from router.api.generation.output.parts import Content, OutputParser, Part, ReasoningPart
from router.api.generation.output.scan import MarkerFinder, Prose


class ReasoningFormat(Enum):
    THINK = "think"
    """The model or the template opens <think>."""
    DEEPSEEK_R1 = "deepseek-r1"
    """Answers begin with reasoning, with or without <think>."""
    MISTRAL = "mistral"
    SEED_OSS = "seed-oss"
    GEMMA4 = "gemma4"
    COHERE = "cohere"
    APERTUS = "apertus"
    ERNIE = "ernie45"
    """The answer is in tags, too."""
    HUNYUAN = "hunyuan"
    HARMONY = "harmony"
    """Messages of the analysis channel (gpt-oss)."""


class ReasoningTags(NamedTuple):
    opening: str
    closing: str
    answer: tuple[str, str] | None = None
    """Tags around the answer after it."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (self.opening, self.closing, *(self.answer or ()))

    def taught_by(self, template: str) -> bool:
        """Whether a chat template has one of the two tags, and those of the answer."""
        written = self.opening in template or self.closing in template
        return written and all(tag in template for tag in self.answer or ())


THINK: Final = ReasoningTags("<think>", "</think>")
_ERNIE: Final = THINK._replace(answer=("<response>", "</response>"))
_HUNYUAN: Final = THINK._replace(answer=("<answer>", "</answer>"))
TAGS: Final[Mapping[ReasoningFormat, ReasoningTags]] = {
    ReasoningFormat.MISTRAL: ReasoningTags("[THINK]", "[/THINK]"),
    ReasoningFormat.SEED_OSS: ReasoningTags("<seed:think>", "</seed:think>"),
    ReasoningFormat.GEMMA4: ReasoningTags("<|channel>thought", "<channel|>"),
    ReasoningFormat.COHERE: ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat.APERTUS: ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningFormat.ERNIE: _ERNIE,
    ReasoningFormat.HUNYUAN: _HUNYUAN,
    ReasoningFormat.THINK: THINK,
    ReasoningFormat.DEEPSEEK_R1: THINK,
}


def reasoning_of(template: str) -> ReasoningFormat | None:
    """The format of reasoning in a chat template; None: it has none."""
    return next((format for format, tags in TAGS.items() if tags.taught_by(template)), None)


class _State(Enum):
    BEGIN = auto()
    REASONING = auto()
    ANSWER = auto()


class ReasoningParser:
    """Whitespace around the tags belongs to neither part. The answer goes to `rest`, if there is one."""

    def __init__(
        self, rest: OutputParser | None = None, *, inside: bool = False, tags: ReasoningTags = THINK
    ) -> None:
        """`inside`: the answer begins with reasoning, whether or not it repeats the opening tag."""
        self._opening: Final = tags.opening
        self._rest: Final = rest
        self.has_reasoning = inside
        """Whether the answer begins with reasoning, as far as is known."""
        self._without_tag: Final = _State.REASONING if inside else _State.ANSWER
        self._state = _State.BEGIN
        self._held = ""
        self._finder: Final = MarkerFinder(tags.closing)
        self._reasoning: Final = Prose(strip_start=True)
        self._strip = False

    @property
    def has_answer(self) -> bool:
        """Whether all text to come belongs to the answer."""
        return self._state is _State.ANSWER

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        if self._state is _State.BEGIN:
            text = self._begin(self._held + text)
        if self._state is _State.REASONING and text:
            before, text = self._finder.feed(text)
            if thought := self._reasoning.feed(before):
                parts.append(ReasoningPart(thought))
            if self._finder.found:
                self._state, self._strip = _State.ANSWER, True
        if self._state is _State.ANSWER:
            if self._strip:
                text = text.lstrip()
                self._strip = not text
            parts += self._answer(text)
        return parts

    def finish(self) -> list[Part]:
        parts: list[Part] = []
        match self._state:
            case _State.BEGIN if self._without_tag is _State.REASONING:
                if thought := self._reasoning.feed(self._held):
                    parts.append(ReasoningPart(thought))
            case _State.BEGIN:
                parts += self._answer(self._held)
            case _State.REASONING:
                if thought := self._reasoning.feed(self._finder.flush()):
                    parts.append(ReasoningPart(thought))
        return parts if self._rest is None else parts + self._rest.finish()

    def _begin(self, text: str) -> str:
        start = text.lstrip()
        if start.startswith(self._opening):
            self._held, self._state, self.has_reasoning = "", _State.REASONING, True
            return start[len(self._opening) :]
        if self._opening.startswith(start):
            self._held = text
            return ""
        self._held, self._state = "", self._without_tag
        return text

    def _answer(self, text: str) -> list[Part]:
        if not text:
            return []
        return [Content(text)] if self._rest is None else self._rest.feed(text)


class FindsReasoning(OutputParser, Protocol):
    @property
    def has_reasoning(self) -> bool:
        """Whether the answer begins with reasoning, as far as is known."""

    @property
    def has_answer(self) -> bool:
        """Whether all text to come belongs to the answer."""


class ReasoningCounter:
    """Counts the tokens up to and including the one with which the answer begins, such as `</think>`.

    The text is fed token by token.

    Independent of how tokens are grouped in messages, and of text that is held back for stop strings.
    """

    def __init__(self, parser: FindsReasoning) -> None:
        self._parser: Final = parser
        self._seen = 0

    @property
    def is_over(self) -> bool:
        return self._parser.has_answer

    @property
    def tokens(self) -> int:
        """So far; 0 while it is not certain that the answer begins with reasoning."""
        return self._seen if self._parser.has_reasoning else 0

    def feed(self, text: str) -> None:
        """The text of one more token; empty where it ends within a character."""
        if not self.is_over:
            self._parser.feed(text)
            self._seen += 1
