"""POST /tokenize and /detokenize, with the fields of vLLM."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from router.api.generation.generation_request import Chat, Prompt
from router.api.generation.params.bounds import ModelName, TokenId
from router.api.generation.params.validation import RequestModel
from router.api.openai.messages import MessageBody, for_template
from router.api.openai.prompting import prompt_end
from router.api.openai.tools import MAX_TOOLS, ToolBody, tool_use

MAX_DETOKENIZED: Final = 1 << 19
"""Ids of one call."""


class TokenizeBody(RequestModel):
    """A prompt, or messages."""

    model: ModelName | None = None
    prompt: str | None = None
    """Text, as in /v1/completions."""
    messages: Annotated[list[MessageBody], Field(min_length=1)] | None = None
    """A conversation, as in /v1/chat/completions."""
    tools: Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)] | None = None
    """Part of the prompt of a conversation."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables of the chat template."""
    add_generation_prompt: bool | None = None
    """False: the prompt ends with the last message."""
    continue_final_message: bool | None = None
    """The prompt ends within the last message, an assistant's."""

    @model_validator(mode="after")
    def _one_prompt(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "Either prompt or messages must be given")
        return self

    def to_prompt(self) -> Prompt:
        if self.messages is None:
            return self.prompt or ""
        return Chat(
            for_template(self.messages),
            self.chat_template_kwargs or {},
            tool_use(self.tools or (), None, True),
            prompt_end(self.add_generation_prompt, self.continue_final_message),
        )


class DetokenizeBody(RequestModel):
    model: ModelName | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_DETOKENIZED)]
    """Token ids."""
