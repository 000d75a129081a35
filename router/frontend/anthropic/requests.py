"""POST /v1/messages and /v1/messages/count_tokens: every field of Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, Tag

from router.errors import InvalidRequest
from router.frontend.cache_hints import CacheControl, CacheKey, longest_s
from router.frontend.fields import TEXT_OR_LIST, Refused, WithoutEffect
from router.frontend.openai.messages import (
    AssistantMessage,
    FunctionCall,
    MessageBody,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    for_template,
)
from router.frontend.openai.prompting import ReasoningEffort, with_effort
from router.frontend.openai.structured_output import SchemaText, json_constraint
from router.frontend.openai.tools import ToolName, choose
from router.processing.generation_request import Chat, GenerationRequest
from router.processing.params.bounds import (
    MaxTokens,
    ModelName,
    Priority,
    Served,
    StopStrings,
    Temperature,
    Timeout,
    TopK,
    TopP,
)
from router.processing.params.constraint import Constraint
from router.processing.params.sampling_options import SamplingOptions
from router.processing.params.validation import STRICT
from router.processing.text.chat_template import PromptEnd
from router.processing.tools import Tool, ToolUse

_CacheMark: TypeAlias = CacheControl | None
_Bookkeeping: TypeAlias = Annotated[Any, WithoutEffect("bookkeeping of Anthropic's service")]
_Hosted: TypeAlias = Annotated[Any, Refused("no hosted tools")]


class TextBlock(BaseModel):
    model_config = STRICT

    type: Literal["text"]
    text: str
    cache_control: _CacheMark = None
    citations: Annotated[Any, WithoutEffect("of an earlier answer")] = None


_Text: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[TextBlock], Tag("list")], TEXT_OR_LIST
]


class ToolUseBlock(BaseModel):
    model_config = STRICT

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: _CacheMark = None
    caller: Annotated[Any, WithoutEffect("of an earlier answer")] = None


class ToolResultBlock(BaseModel):
    model_config = STRICT

    type: Literal["tool_result"]
    tool_use_id: str
    content: _Text | None = None
    is_error: Annotated[bool | None, WithoutEffect("the content says so")] = None
    cache_control: _CacheMark = None


class ThinkingBlock(BaseModel):
    model_config = STRICT

    type: Literal["thinking"]
    thinking: str
    signature: Annotated[Any, WithoutEffect("reasoning is not signed")] = None


Block: TypeAlias = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")
]
"""Blocks of other types (images, documents) are refused."""


class MessageParam(BaseModel):
    model_config = STRICT

    role: Literal["user", "assistant", "system"]
    content: Annotated[Annotated[str, Tag("text")] | Annotated[list[Block], Tag("list")], TEXT_OR_LIST]


class ToolParam(BaseModel):
    """A tool of the client; hosted tools are refused."""

    model_config = STRICT

    name: ToolName
    input_schema: dict[str, Any]
    """JSON Schema of an object."""
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: _CacheMark = None
    strict: Annotated[bool | None, WithoutEffect("forced calls always follow the schema")] = None
    input_examples: Annotated[Any, Refused("chat templates have no place for them", ([],))] = None
    eager_input_streaming: Annotated[Any, WithoutEffect("arguments are streamed as they come")] = None
    defer_loading: Annotated[Any, Refused("no tool search", (False,))] = None
    allowed_callers: Annotated[Any, Refused("no hosted tools", (["direct"],))] = None


class ToolChoiceParam(BaseModel):
    model_config = STRICT

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    """With type `tool`."""
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    model_config = STRICT

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, WithoutEffect("the model decides how long it reasons")] = None
    display: Annotated[Any, WithoutEffect("reasoning is returned whole")] = None


class JsonSchemaFormat(BaseModel):
    model_config = STRICT

    type: Literal["json_schema"]
    schema_: Annotated[SchemaText, Field(alias="schema")]


class OutputConfig(BaseModel):
    model_config = STRICT

    format: JsonSchemaFormat | None = None
    effort: ReasoningEffort | None = None
    """A variable of the chat template; templates without it ignore it."""
    task_budget: Annotated[Any, Refused("the model is not told of a budget")] = None


class CountTokensBody(BaseModel):
    """POST /v1/messages/count_tokens, and what both endpoints have in common."""

    model_config = STRICT

    model: ModelName
    messages: Annotated[list[MessageParam], Field(min_length=1), Served("max_new_tokens")]
    """Text, tool calls, their results, and reasoning. A last message of the assistant is continued."""
    system: _Text | None = None
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
    cache_control: _CacheMark = None
    """Retain prompt and answer in the prefix cache for `ttl`, `5m` or `1h`, within the key's budget. The same
    at a block: the longest time counts, for the whole."""
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
            messages.append(SystemMessage(role="system", content=_text(self.system)))
        for number, message in enumerate(self.messages):
            messages += _messages(message, number)
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


class MessagesBody(CountTokensBody):
    """POST /v1/messages."""

    max_tokens: Annotated[MaxTokens, Field(ge=1)]
    """Of the answer, reasoning included; cut to what the context holds."""
    temperature: Temperature | None = None
    """1 unless given."""
    top_p: TopP | None = None
    """1 unless given."""
    top_k: TopK | None = None
    """Off unless given."""
    stop_sequences: StopStrings | None = None
    """Not part of the answer."""
    stream: bool | None = None
    """Server-sent events."""

    # Not Anthropic's, but as in OpenAI's chat completions.
    prompt_cache_key: CacheKey | None = None
    """Names the session whose KV is retained."""
    priority: Priority | None = None
    """With --schedule-policy priority; otherwise only 0."""
    ttft_deadline: Timeout | None = None
    """Deadline of the first token, in seconds; with --schedule-policy deadline."""
    timeout: Timeout | None = None
    """Deadline of the whole request, in seconds."""

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

    def _cache_marks(self) -> Iterator[CacheControl | None]:
        yield self.cache_control
        yield from (tool.cache_control for tool in self.tools or ())
        for content in (self.system or "", *(message.content for message in self.messages)):
            if not isinstance(content, str):
                yield from (None if isinstance(b, ThinkingBlock) else b.cache_control for b in content)

    def to_request(self, request_id: str) -> GenerationRequest:
        chat = self.to_chat()
        given: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "cut_max_tokens": True,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "stop": self.stop_sequences,
            # A format is that of the answer's text, and a forced call has none.
            "constraint": None if chat.tool_use.forced else self._constraint(),
        }
        options = SamplingOptions(**{name: value for name, value in given.items() if value is not None})
        return GenerationRequest(
            id=request_id,
            prompts=[chat],
            options=options,
            priority=self.priority or 0,
            ttft_deadline_s=self.ttft_deadline or 0.0,
            timeout_s=self.timeout or 0.0,
            cache_key=self.prompt_cache_key or "",
            retain_s=longest_s(self._cache_marks()),
        )


def _messages(message: MessageParam, number: int) -> list[MessageBody]:
    """The messages in OpenAI's format, with each tool result as its own message."""
    if isinstance(message.content, str):
        return [_plain(message.role, message.content)]
    texts = [block.text for block in message.content if isinstance(block, TextBlock)]
    if message.role == "system":
        wrong = [block for block in message.content if not isinstance(block, TextBlock)]
        if wrong:
            raise _misplaced(wrong[0].type, number)
        return [_plain("system", "\n".join(texts))]
    if message.role == "user":
        wrong = [block for block in message.content if not isinstance(block, TextBlock | ToolResultBlock)]
        if wrong:
            raise _misplaced(wrong[0].type, number)
        results: list[MessageBody] = [
            ToolMessage(role="tool", content=_text(block.content or ""), tool_call_id=block.tool_use_id)
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
        return [*results, *([_plain("user", "\n".join(texts))] if texts or not results else [])]
    if any(isinstance(block, ToolResultBlock) for block in message.content):
        raise _misplaced("tool_result", number)
    calls = [
        ToolCall(
            id=block.id,
            type="function",
            function=FunctionCall(name=block.name, arguments=json.dumps(block.input)),
        )
        for block in message.content
        if isinstance(block, ToolUseBlock)
    ]
    thoughts = [block.thinking for block in message.content if isinstance(block, ThinkingBlock)]
    return [
        AssistantMessage(
            role="assistant",
            content="\n".join(texts),
            tool_calls=calls or None,
            reasoning_content="\n".join(thoughts) if thoughts else None,
        )
    ]


def _plain(role: str, text: str) -> MessageBody:
    match role:
        case "user":
            return UserMessage(role="user", content=text)
        case "system":
            return SystemMessage(role="system", content=text)
    return AssistantMessage(role="assistant", content=text)


def _misplaced(kind: str, number: int) -> InvalidRequest:
    param = f"messages.{number}.content"
    return InvalidRequest(f"A {kind} block is in a message of the wrong role.", param=param)


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)
