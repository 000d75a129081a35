"""Formats of tool calls and reasoning of a model, from its chat template or flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from router.errors import InvalidRequest
from router.processing.output.first_call import FirstCallOnly
from router.processing.output.forced import NamedCallParser, RequiredCallsParser
from router.processing.output.hermes import HermesParser
from router.processing.output.llama import LlamaJsonParser
from router.processing.output.mistral import MARKERS, MistralParser, with_short_ids
from router.processing.output.parts import OutputParser
from router.processing.output.reasoning import ReasoningCounter, ReasoningParser, begins_inside
from router.processing.tools import ToolChoice, ToolUse

__all__ = ["OutputFormats", "ReasoningFormat", "ToolFormat"]


class ToolFormat(Enum):
    LLAMA_JSON = "llama3-json"
    HERMES = "hermes"
    MISTRAL = "mistral"


class ReasoningFormat(Enum):
    THINK = "think"
    """The model or the template opens <think>."""
    DEEPSEEK_R1 = "deepseek-r1"
    """Answers begin with reasoning, with or without <think>."""


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
        """The conversation with call ids that the chat template accepts."""
        return with_short_ids(messages) if self.tools is ToolFormat.MISTRAL else messages

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that must be visible in the text of an answer."""
        return MARKERS if self.tools is ToolFormat.MISTRAL else ()

    def parser(self, use: ToolUse, prompt: str) -> OutputParser | None:
        """A parser of one answer to `prompt`; None if it needs no parsing. Raises InvalidRequest."""
        tools = self._tool_parser(use)
        return ReasoningParser(tools, inside=self._begins_inside(prompt)) if self._reasons(use) else tools

    def counter(self, use: ToolUse, prompt: str) -> ReasoningCounter | None:
        """Of the reasoning tokens of one answer to `prompt`; None where there is no reasoning."""
        return ReasoningCounter(inside=self._begins_inside(prompt)) if self._reasons(use) else None

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
                case None:
                    raise InvalidRequest(
                        "The format of this model's tool calls is not known; start the router with"
                        " --tool-call-parser, or send tool_choice: required.",
                        param="tools",
                        code="unsupported_parameter",
                    )
        return parser if use.parallel else FirstCallOnly(parser)


def _tools_of(source: str) -> ToolFormat | None:
    if "[TOOL_CALLS]" in source:
        return ToolFormat.MISTRAL
    if "<tool_call>" in source:
        xml = "<function=" in source or "<arg_key>" in source  # Qwen3-Coder, GLM
        return None if xml else ToolFormat.HERMES
    if "<|python_tag|>" in source or ('"parameters"' in source and "ipython" in source):
        return ToolFormat.LLAMA_JSON
    return None
