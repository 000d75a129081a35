"""Fields about the prompt and the expected answer: effort, how the prompt ends, the prediction."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Tag

from router.api.fields import TEXT_OR_LIST
from router.api.generation.params.validation import RequestModel
from router.api.generation.text.chat_template import PromptEnd
from router.errors import InvalidRequest

ReasoningEffort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""Efforts of OpenAI's and Anthropic's APIs."""


def with_effort(effort: ReasoningEffort | None) -> dict[str, Any]:
    """The variables of the chat template for a reasoning effort, under the name that gpt-oss gave it."""
    return {} if effort is None else {"reasoning_effort": effort}


def prompt_end(add_generation_prompt: bool | None, continue_final_message: bool | None) -> PromptEnd:
    """The end of the prompt by vLLM's two switches. Raises InvalidRequest if they contradict each other."""
    if continue_final_message:
        if add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other.",
                param="continue_final_message",
            )
        return PromptEnd.LAST_MESSAGE
    return PromptEnd.CONVERSATION if add_generation_prompt is False else PromptEnd.ANSWER


class PredictedText(RequestModel):
    type: Literal["text"]
    text: str


class PredictionBody(RequestModel):
    """Tokens of it are verified several at a time. The answer is the same without it."""

    type: Literal["content"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[PredictedText], Tag("list")],
        TEXT_OR_LIST,
    ]

    @property
    def text(self) -> str:
        parts = self.content
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)
