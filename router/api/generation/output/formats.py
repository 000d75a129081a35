"""Formats of tool calls and reasoning of a model, from its chat template or flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from router.api.generation.output import harmony
from router.api.generation.output.forced import FirstCallOnly, NamedCallParser, RequiredCallsParser
from router.api.generation.output.hermes import HermesParser
from router.api.generation.output.llama import LlamaJsonParser
from router.api.generation.output.mistral import MARKERS, MistralParser, with_short_ids
from router.api.generation.output.parts import OutputParser
from router.api.generation.output.reasoning import ReasoningCounter, ReasoningParser, begins_inside
from router.api.generation.tools import ToolChoice, ToolUse
from router.errors import InvalidRequest


class ToolFormat(Enum):
    LLAMA_JSON = "llama3-json"
    HERMES = "hermes"
    MISTRAL = "mistral"
    HARMONY = "harmony"


class ReasoningFormat(Enum):
    THINK = "think"
    """The model or the template opens <think>."""
    DEEPSEEK_R1 = "deepseek-r1"
    """Answers begin with reasoning, with or without <think>."""
    HARMONY = "harmony"
    """Messages of the analysis channel (gpt-oss)."""


@dataclass(frozen=True, slots=True)
class OutputFormats:
    """The formats of one model's answers; None: not parsed."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of_template(cls, source: str, *, takes_tools: bool) -> OutputFormats:
        """The formats that a template implies. `takes_tools`: whether it puts tools into the prompt.

        If it does not, this server describes them in Hermes' format.
        """
        if "<|channel|>" in source:
            return cls(ToolFormat.HARMONY, ReasoningFormat.HARMONY)
        reasoning = ReasoningFormat.THINK if "</think>" in source or "<think>" in source else None
        return cls(_tools_of(source) if takes_tools else ToolFormat.HERMES, reasoning)

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
            case ToolFormat.HARMONY:
                return [_with_thinking(message) for message in messages]
            case _:
                return messages

    def markers(self, use: ToolUse) -> tuple[str, ...]:
        """Special tokens that must be visible in the text of an answer."""
        if self._harmony(use):
            return harmony.MARKERS
        return MARKERS if self.tools is ToolFormat.MISTRAL and use.offered else ()

    def parser(self, use: ToolUse, prompt: str) -> OutputParser | None:
        """A parser of one answer to `prompt`; None if it needs no parsing. Raises InvalidRequest."""
        if self._harmony(use):
            parser = harmony.HarmonyParser(calls=bool(use.offered), reasoning=self.reasoning is not None)
            return parser if use.parallel else FirstCallOnly(parser)
        tools = self._tool_parser(use)
        return ReasoningParser(tools, inside=self._begins_inside(prompt)) if self._reasons(use) else tools

    def counter(self, use: ToolUse, prompt: str) -> ReasoningCounter | None:
        """Counter of the reasoning tokens of one answer to `prompt`; None where there is no reasoning."""
        if not self._reasons(use):
            return None
        if self._harmony(use):
            return ReasoningCounter(harmony.HarmonyParser(calls=bool(use.offered)))
        return ReasoningCounter(ReasoningParser(inside=self._begins_inside(prompt)))

    def _harmony(self, use: ToolUse) -> bool:
        """Whether an answer is written in channels: it is, unless a grammar enforces another format."""
        named = ToolFormat.HARMONY is self.tools or ReasoningFormat.HARMONY is self.reasoning
        return named and not use.forced

    def _reasons(self, use: ToolUse) -> bool:
        return self.reasoning is not None and not use.forced

    def _begins_inside(self, prompt: str) -> bool:
        return self.reasoning is ReasoningFormat.DEEPSEEK_R1 or begins_inside(prompt)

    def _tool_parser(self, use: ToolUse) -> OutputParser | None:
        if not use.offered:
            return None
        if use.choice is ToolChoice.NAMED:
            return NamedCallParser(use.tools[0].name)
        parser: OutputParser
        if use.choice is ToolChoice.REQUIRED:
            parser = RequiredCallsParser()
        else:
            match self.tools:
                case ToolFormat.HERMES:
                    parser = HermesParser()
                case ToolFormat.MISTRAL:
                    parser = MistralParser()
                case ToolFormat.LLAMA_JSON:
                    parser = LlamaJsonParser({tool.name for tool in use.tools})
                case ToolFormat.HARMONY | None:
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


def _tools_of(source: str) -> ToolFormat | None:
    if "[TOOL_CALLS]" in source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in source:
        xml = "<function=" in source or "<arg_key>" in source  # Qwen3-Coder, GLM
        return None if xml else ToolFormat.HERMES
    if "<|python_tag|>" in source or ('"parameters"' in source and "ipython" in source):
        return ToolFormat.LLAMA_JSON
    return None
