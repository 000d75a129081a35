"""Formats of tool calls and reasoning of a model, from its chat template or flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.api.generation.output import harmony
from router.api.generation.output.answer_tags import TaggedAnswer
from router.api.generation.output.call_formats import CALL_FORMATS, ToolFormat, taught_by
from router.api.generation.output.call_ids import with_numbered_ids, with_short_ids
from router.api.generation.output.calls.written_calls import PythonicParser
from router.api.generation.output.forced import FirstCallOnly, NamedCallParser, RequiredCallsParser
from router.api.generation.output.llama import LlamaJsonParser
from router.api.generation.output.mistral import MARKERS, MistralParser
from router.api.generation.output.parts import OutputParser
from router.api.generation.output.reasoning import (
    TAGS,
    THINK,
    ReasoningCounter,
    ReasoningFormat,
    ReasoningParser,
    reasoning_of,
)
from router.api.generation.output.sections import SectionParser
from router.api.generation.tools import ToolChoice, ToolUse
from router.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class OutputFormats:
    """The formats of one model's answers; None: not parsed."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of_template(cls, source: str, *, takes_tools: bool) -> OutputFormats:
        """The formats that a template implies. `takes_tools`: whether it puts tools into the prompt.

        If it does not, this server describes them (`router.api.generation.text.described_tools`).
        """
        if "<|channel|>" in source:
            return cls(ToolFormat.HARMONY, ReasoningFormat.HARMONY)
        return cls(taught_by(source, takes_tools=takes_tools), reasoning_of(source))

    def chosen(self, tools: str, reasoning: str) -> OutputFormats:
        """The formats that flags choose: values of the enums, "auto" for those of the template, "none"."""
        format = None if reasoning == "none" else self.reasoning
        return OutputFormats(
            self.tools if tools == "auto" else ToolFormat(tools),
            format if reasoning in ("auto", "none") else ReasoningFormat(reasoning),
        )

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The conversation with the call ids and the names of fields that the chat template accepts."""
        match self.tools:
            case ToolFormat.MISTRAL:
                return with_short_ids(messages)
            case ToolFormat.KIMI_K2:
                return with_numbered_ids(messages)
            case ToolFormat.HARMONY:
                return [_with_thinking(message) for message in messages]
            case _:
                return messages

    def markers(self, use: ToolUse) -> tuple[str, ...]:
        """Special tokens that must be visible in the text of an answer."""
        if self._harmony(use):
            return harmony.MARKERS
        calls: tuple[str, ...] = ()
        if self.tools is ToolFormat.MISTRAL:
            calls = MARKERS
        elif format := CALL_FORMATS.get(self.tools) if self.tools else None:
            calls = (format.begin, format.end, *format.markers)
        reasoning = TAGS.get(self.reasoning) if self.reasoning else None
        return (*(calls if use.offered else ()), *(reasoning.markers if reasoning else ()))

    def parser(self, use: ToolUse, prompt: str) -> OutputParser | None:
        """A parser of one answer to `prompt`; None if it needs no parsing. Raises InvalidRequest."""
        if self._harmony(use):
            parser = harmony.HarmonyParser(calls=bool(use.offered), reasoning=self.reasoning is not None)
            return parser if use.parallel else FirstCallOnly(parser)
        tools = self._tool_parser(use)
        return self._reasoning_parser(prompt, tools) if self._reasons(use) else tools

    def counter(self, use: ToolUse, prompt: str) -> ReasoningCounter | None:
        """Counter of the reasoning tokens of one answer to `prompt`; None where there is no reasoning."""
        if not self._reasons(use):
            return None
        if self._harmony(use):
            return ReasoningCounter(harmony.HarmonyParser(calls=bool(use.offered)))
        return ReasoningCounter(self._reasoning_parser(prompt))

    def _harmony(self, use: ToolUse) -> bool:
        """Whether an answer is written in channels: it is, unless a grammar enforces another format."""
        named = ToolFormat.HARMONY is self.tools or ReasoningFormat.HARMONY is self.reasoning
        return named and not use.forced

    def _reasons(self, use: ToolUse) -> bool:
        return self.reasoning is not None and not use.forced

    def _reasoning_parser(self, prompt: str, rest: OutputParser | None = None) -> ReasoningParser:
        tags = TAGS.get(self.reasoning, THINK) if self.reasoning else THINK
        opened = prompt.rstrip().endswith(tags.opening)  # by the template
        inside = opened or self.reasoning is ReasoningFormat.DEEPSEEK_R1
        if tags.answer is not None:
            rest = TaggedAnswer(*tags.answer, rest)
        return ReasoningParser(rest, inside=inside, tags=tags)

    def _tool_parser(self, use: ToolUse) -> OutputParser | None:
        if not use.offered:
            return None
        if use.choice is ToolChoice.NAMED:
            return NamedCallParser(use.tools[0].name)
        parser: OutputParser
        if use.choice is ToolChoice.REQUIRED:
            parser = RequiredCallsParser()
        else:
            tools = {tool.name: tool for tool in use.tools}
            match self.tools:
                case ToolFormat.MISTRAL:
                    parser = MistralParser()
                case ToolFormat.LLAMA_JSON:
                    parser = LlamaJsonParser(set(tools))
                case ToolFormat.PYTHONIC:
                    parser = PythonicParser()
                case ToolFormat() as format if format in CALL_FORMATS:
                    parser = SectionParser(CALL_FORMATS[format], tools)
                case _:
                    raise InvalidRequest(
                        "The format of this model's tool calls is not known; start the router with"
                        " --tool-call-parser, or send tool_choice: required.",
                        param="tools",
                        code="unsupported_parameter",
                    )
        return parser if use.parallel else FirstCallOnly(parser)


def _with_thinking(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Harmony's template reads the reasoning of a message as `thinking`."""
    fields = dict(message)
    if (reasoning := fields.pop("reasoning_content", None)) is None:
        return message
    return fields | {"thinking": reasoning}
