"""A generation request, independent of the frontend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from router.api.generation.audit.answer import Detail
from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.text.chat_template import PromptEnd
from router.api.generation.text.system_messages import Message
from router.api.generation.tools import NO_TOOLS, ToolUse
from router.api.media.marks import ImageSource
from rpc.baton.v1 import worker_pb2


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A block of a conversation up to which the client asks to retain the prompt."""

    seconds: float
    altered: Callable[[], Iterable[Chat]]
    """Makes variants of the conversation in which the block ends differently; see `text.breakpoints`."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation for the assistant to continue."""

    messages: Sequence[Message]
    template_options: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse = NO_TOOLS
    end: PromptEnd = PromptEnd.ANSWER
    breakpoints: Sequence[Breakpoint] = ()


@dataclass(frozen=True, slots=True)
class TokensWithImages:
    """The prompt that a conversation with images became, and these."""

    tokens: Sequence[int]
    images: Sequence[ImageSource]


Prompt: TypeAlias = str | Sequence[int] | Chat | TokensWithImages
"""Text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    id: str
    """Unique among running requests."""
    prompts: Sequence[Prompt]
    options: SamplingOptions
    n: int = 1
    """Completions of every prompt."""
    work: worker_pb2.Work = field(default_factory=worker_pb2.Work)
    """What workers are told besides prompt and sampling: see `envelope`."""
    routed_by_default: bool = False
    """Whether the experts of its tokens are reported if the workers keep them."""
    prediction: str | Sequence[int] = ""
    """Text or tokens of the answer as the client expects it. It changes no token, only how fast they come."""
    speculative: bool = True
    """False: no tokens are drafted."""
    timings: bool = False
    """Whether the last chunk of every completion contains the TTFT waterfall."""
    audit: Detail | None = None
    """What the last chunk of every completion reports of how it was computed; None: nothing."""
