"""POST /v1/messages and /v1/messages/count_tokens: every field of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from engine.core.sampling_params import Temperature, TopK, TopP
from router.api.anthropic.blocks import (
    CacheMark,
    MessageParam,
    Text,
    ToolParam,
    in_openais_format,
    text_of,
)
from router.api.anthropic.breakpoints import Fields, marked_places
from router.api.fields import Refused, WithoutEffect
from router.api.generation.generation_request import Breakpoint, Chat, GenerationRequest
from router.api.generation.params.bounds import (
    MaxTokens,
    ModelName,
    Served,
    StopStrings,
)
from router.api.generation.params.constraint import Constraint
from router.api.generation.params.validation import RequestModel
from router.api.generation.text.chat_template import PromptEnd
from router.api.generation.tools import Tool, ToolUse
from router.api.openai.messages import MessageBody, for_template, text_message
from router.api.openai.prompting import ReasoningEffort, with_effort
from router.api.openai.structured_output import SchemaText, json_constraint
from router.api.openai.tools import ToolName, choose
from router.api.scheduled_body import ScheduledBody
from router.errors import InvalidRequest

_Bookkeeping: TypeAlias = Annotated[Any, WithoutEffect("bookkeeping of Anthropic's service")]
_Hosted: TypeAlias = Annotated[Any, Refused("no hosted tools")]


class ToolChoiceParam(RequestModel):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    """With type `tool`."""
    disable_parallel_tool_use: bool | None = None


class Thinking(RequestModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, WithoutEffect("the model decides how long it reasons")] = None
    display: Annotated[Any, WithoutEffect("reasoning is returned whole")] = None


class JsonSchemaFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: Annotated[SchemaText, Field(alias="schema")]


class OutputConfig(RequestModel):
    format: JsonSchemaFormat | None = None
    effort: ReasoningEffort | None = None
    """A variable of the chat template; templates without it ignore it."""
    task_budget: Annotated[Any, Refused("the model is not told of a budget")] = None


class CountTokensBody(RequestModel):
    """POST /v1/messages/count_tokens, and what both endpoints have in common."""

    model: ModelName
    messages: Annotated[list[MessageParam], Field(min_length=1), Served("max_new_tokens")]
    """Text, tool calls, their results, and reasoning. A last message of the assistant is continued."""
    system: Text | None = None
    """The system message."""
    tools: Annotated[list[ToolParam], Field(max_length=128)] | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoiceParam | None = None
    """`auto`, `any`, `tool` with a name, or `none`."""

    output_config: OutputConfig | None = None
    """`format`: JSON of a schema. `effort`: if the chat template has it."""
    output_format: JsonSchemaFormat | None = None
    """The same as `output_config.format`."""

    thinking: Annotated[
        Thinking | None, WithoutEffect("a model reasons as its chat template says; see reasoning")
    ] = None
    cache_control: CacheMark = None
    """Retain prompt and answer in the prefix cache for `ttl`, `5m` or `1h`, within the key's budget. At a
    tool or a block: the prompt up to there. At most four, longer times first."""
    context_management: Annotated[Any, WithoutEffect("a prompt is never cut")] = None
    mcp_servers: Annotated[Any, Refused("no hosted tools", ([],))] = None
    speed: Annotated[Any, Refused("only `standard` is supported", ("standard",))] = None
    compaction: Annotated[Any, Refused("a prompt is never cut")] = None
    fallbacks: Annotated[Any, Refused("a request is for one model", ([],))] = None
    thread: Annotated[Any, Refused("nothing is kept between requests")] = None
    betas: _Bookkeeping = None
    billing_policy: _Bookkeeping = None
    diagnostics: _Bookkeeping = None
    fallback_credit_token: _Bookkeeping = None
    user_profile_id: _Bookkeeping = None
    workspace_id: _Bookkeeping = None

    def to_chat(self) -> Chat:
        """Raises InvalidRequest."""
        messages: list[MessageBody] = []
        if self.system is not None:
            messages.append(text_message("system", text_of(self.system)))
        for number, message in enumerate(self.messages):
            messages += in_openais_format(message, number)
        last = self.messages[-1]
        end = PromptEnd.LAST_MESSAGE if last.role == "assistant" else PromptEnd.ANSWER
        effort = None if self.output_config is None else self.output_config.effort
        return Chat(for_template(messages), with_effort(effort), self._tool_use(), end)

    def _tool_use(self) -> ToolUse:
        tools = [Tool(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()]
        choice = self.tool_choice
        if choice is None:
            return choose(tools, None, None, True)
        if (choice.type == "tool") != (choice.name is not None):
            raise InvalidRequest("tool_choice needs a name with type tool only.", param="tool_choice.name")
        mode = {"any": "required", "tool": None}.get(choice.type, choice.type)
        return choose(tools, choice.name, mode, not choice.disable_parallel_tool_use)


class MessagesBody(CountTokensBody, ScheduledBody):
    """POST /v1/messages."""

    max_tokens: Annotated[MaxTokens, Field(ge=1)]
    """Longest answer, reasoning included; cut to what the context holds."""
    temperature: Temperature | None = None
    """The model's default, or 1, unless given."""
    top_p: TopP | None = None
    """The model's default, or 1, unless given."""
    top_k: TopK | None = None
    """The model's default, or off, unless given."""
    stop_sequences: StopStrings | None = None
    """Not part of the answer."""

    metadata: _Bookkeeping = None
    service_tier: _Bookkeeping = None
    inference_geo: _Bookkeeping = None
    container: _Hosted = None

    def _constraint(self) -> Constraint | None:
        if self.output_config is not None and self.output_config.format is not None:
            if self.output_format is not None:
                raise InvalidRequest("output_format is given twice.", param="output_format")
            return json_constraint(self.output_config.format.schema_, "output_config.format.schema")
        if self.output_format is not None:
            return json_constraint(self.output_format.schema_, "output_format.schema")
        return None

    def _breakpoints(self) -> list[Breakpoint]:
        """Raises InvalidRequest."""
        places = marked_places(self.system, self.tools, self.messages, self.cache_control)
        return [Breakpoint(place.seconds, partial(self._chats, place.altered)) for place in places]

    def _chats(self, variants: Iterable[Fields]) -> Iterator[Chat]:
        return (self.model_copy(update=dict(fields)).to_chat() for fields in variants)

    @property
    def retain_s(self) -> float:
        return 0.0 if self.cache_control is None else self.cache_control.seconds

    def to_request(self, request_id: str) -> GenerationRequest:
        chat = self.to_chat()
        options = {
            "max_tokens": self.max_tokens,
            "cut_max_tokens": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            # A format is that of the answer's text, and a forced call has none.
            "constraint": None if chat.tool_use.forced else self._constraint(),
        }
        prompt = replace(chat, breakpoints=self._breakpoints())
        return self._request(request_id, [prompt], options)
