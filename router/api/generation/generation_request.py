"""A generation request, independent of the frontend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from router.api.generation.params.sampling_options import SamplingOptions
from router.api.generation.text.chat_template import PromptEnd
from router.api.generation.text.system_messages import Message
from router.api.generation.tools import NO_TOOLS, ToolUse


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


Prompt: TypeAlias = str | Sequence[int] | Chat
"""Text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    id: str
    """Unique among running requests."""
    prompts: Sequence[Prompt]
    options: SamplingOptions
    n: int = 1
    """Completions of every prompt."""
    priority: int = 0
    """Non-zero only if the scheduling policy uses it, and within the limit of the client's key."""
    ttft_deadline_s: float = 0.0
    """Deadline of the first token; 0: none. Only if the scheduling policy uses it."""
    timeout_s: float = 0.0
    """0: no deadline."""
    prediction: str | Sequence[int] = ""
    """Text or tokens of the answer as the client expects it. It changes no token, only how fast they come."""
    speculative: bool = True
    """False: no tokens are drafted."""
    cache_key: str = ""
    """Key of the session within the client's sessions."""
    retain_s: float = 0.0
    """For how long the KV of prompt and answer is to stay cached after the end; 0: it is evicted like any
    other, but for the breakpoints of a `Chat`."""
    timings: bool = False
    """Whether the last chunk of every completion contains the TTFT waterfall."""
