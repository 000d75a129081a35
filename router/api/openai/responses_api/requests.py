"""POST /v1/responses: every field of OpenAI's Responses API. This server keeps no state between requests."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from engine.core.sampling_params import Temperature, TopP
from router.api.cache_hints import OpenAICacheHints
from router.api.fields import TEXT_OR_LIST, TEXT_OR_OBJECT, Refused, WithoutEffect
from router.api.generation.generation_request import Chat, GenerationRequest
from router.api.generation.params.bounds import (
    Logprobs,
    MaxTokens,
    ModelName,
    at_most,
)
from router.api.generation.params.constraint import Constraint
from router.api.generation.params.validation import RequestModel
from router.api.generation.tools import ToolUse
from router.api.openai.items import InputItems, as_messages
from router.api.openai.prompting import ReasoningEffort, with_effort
from router.api.openai.requests import StreamOptions
from router.api.openai.structured_output import ANY_JSON_OBJECT, NamedSchema, json_constraint
from router.api.openai.tools import FunctionBody, ToolName, choose
from router.api.scheduled_body import ScheduledBody
from router.errors import InvalidRequest

_Bookkeeping: TypeAlias = Annotated[Any, WithoutEffect("bookkeeping of OpenAI's service")]
_Stateful: TypeAlias = Annotated[
    Any, Refused("nothing is kept between requests; send the whole conversation")
]


_MAX_METADATA: Final = 64
"""OpenAI takes 16."""


class FunctionTool(FunctionBody):
    type: Literal["function"]


class OtherTool(BaseModel):
    """A tool that OpenAI's service runs itself, or that is no function: the model is not told of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Annotated[str, Field(max_length=64, json_schema_extra={"not": {"const": "function"}})]


class FunctionToolChoice(RequestModel):
    type: Literal["function"]
    name: ToolName


class Reasoning(RequestModel):
    effort: ReasoningEffort | None = None
    """A variable of the chat template; templates without it ignore it."""
    summary: Annotated[Any, WithoutEffect("reasoning comes whole, without a summary")] = None
    generate_summary: Annotated[Any, WithoutEffect("reasoning comes whole, without a summary")] = None


class PlainText(RequestModel):
    type: Literal["text"]


class JsonObject(RequestModel):
    type: Literal["json_object"]


class JsonSchema(NamedSchema):
    type: Literal["json_schema"]


class TextOptions(RequestModel):
    format: Annotated[PlainText | JsonObject | JsonSchema, Field(discriminator="type")] | None = None
    verbosity: Annotated[Any, WithoutEffect("specific to OpenAI's models")] = None


def _is_function(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "function" if kind in ("function", None) else "other"


_Tool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("function")] | Annotated[OtherTool, Tag("other")], Discriminator(_is_function)
]
_ToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")]
    | Annotated[FunctionToolChoice, Tag("object")],
    TEXT_OR_OBJECT,
]
_Include: TypeAlias = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class ResponsesBody(ScheduledBody, OpenAICacheHints):
    """POST /v1/responses."""

    input: Annotated[Annotated[str, Tag("text")] | Annotated[InputItems, Tag("list")], TEXT_OR_LIST]
    """A text, or messages, function calls, their outputs, and reasoning."""
    model: ModelName | None = None
    """Absent: the served model."""
    instructions: str | None = None
    """The system message."""
    max_output_tokens: Annotated[MaxTokens, Field(ge=1)] | None = None
    """Longest answer, reasoning included."""
    temperature: Temperature | None = None
    """The model's default, or 1, unless given."""
    top_p: TopP | None = None
    """The model's default, or 1, unless given."""
    stream_options: StreamOptions | None = None
    """With `stream` only; the usage is always sent."""
    tools: Annotated[list[_Tool], Field(max_length=128)] | None = None
    """Functions that the model may call. Tools of other types (hosted, `custom`, `namespace`) are left out,
    and named in the answer's `metadata`."""
    tool_choice: _ToolChoice | None = None
    """`auto`, `none`, `required`, or a function by name."""
    parallel_tool_calls: bool | None = None
    """False: at most one call."""
    text: TextOptions | None = None
    """Format of the answer."""
    include: list[_Include] | None = None
    """Log-probabilities; reasoning is always included, and not encrypted."""
    top_logprobs: Logprobs | None = None
    """Number of alternatives reported per token; includes log-probabilities."""
    reasoning: Reasoning | None = None
    """`effort`, if the chat template has it."""
    metadata: Annotated[dict[str, str], Field(max_length=_MAX_METADATA), at_most(_MAX_METADATA)] | None = None
    """Repeated in the response."""

    store: Annotated[Any, Refused("nothing is kept between requests; send store: false", (False,))] = None
    previous_response_id: _Stateful = None
    conversation: _Stateful = None
    background: Annotated[Any, Refused("nothing is kept between requests", (False,))] = None
    context_management: Annotated[Any, Refused("no compaction", ([],))] = None
    truncation: Annotated[Any, Refused("a prompt is never cut", ("disabled",))] = None
    prompt: Annotated[Any, Refused("no prompt templates")] = None
    moderation: Annotated[Any, Refused("no moderation model")] = None
    image: Annotated[Any, Refused("answers are text; send images as input_image")] = None
    access_programs: Annotated[Any, Refused("no hosted tools")] = None
    max_tool_calls: Annotated[Any, WithoutEffect("counts hosted tools, of which there are none")] = None
    client_metadata: _Bookkeeping = None
    safety_identifier: _Bookkeeping = None
    service_tier: _Bookkeeping = None
    user: _Bookkeeping = None
    prompt_cache_options: Annotated[Any, WithoutEffect("prefixes are cached without options")] = None

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())

    def to_request(self, request_id: str) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options is only for stream: true.", param="stream_options")
        tool_use = self._tool_use()
        options = {
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": (self.top_logprobs or 0) if self.wants_logprobs else None,
            # A format is that of the answer's text, and a forced call has none.
            "constraint": None if tool_use.forced else self._constraint(),
        }
        chat = Chat(as_messages(self.input, self.instructions), with_effort(self.effort), tool_use)
        return self._request(request_id, [chat], options)

    @property
    def effort(self) -> ReasoningEffort | None:
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def functions(self) -> list[FunctionTool]:
        """The tools that the model may call."""
        return [tool for tool in self.tools or () if isinstance(tool, FunctionTool)]

    @property
    def left_out(self) -> list[str]:
        """Types of the tools that the model is not told of."""
        return sorted({tool.type for tool in self.tools or () if isinstance(tool, OtherTool)})

    def _constraint(self) -> Constraint | None:
        match self.text and self.text.format:
            case JsonObject():
                return json_constraint(ANY_JSON_OBJECT, "text.format")
            case JsonSchema(schema_=schema):
                return json_constraint(schema, "text.format.schema")
        return None

    def _tool_use(self) -> ToolUse:
        tools = [function.tool for function in self.functions]
        choice = self.tool_choice
        name = choice.name if isinstance(choice, FunctionToolChoice) else None
        mode = choice if isinstance(choice, str) else None
        return choose(tools, name, mode, self.parallel_tool_calls is not False)
