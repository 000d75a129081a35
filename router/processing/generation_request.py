"""A request for text, whichever frontend it came through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from router.processing.params.sampling_options import SamplingOptions
from router.processing.text.chat_template import Message
from router.processing.tools import NO_TOOLS, ToolUse

__all__ = ["Chat", "GenerationRequest", "Prompt"]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation that the assistant is to continue."""

    messages: Sequence[Message]
    template_options: Mapping[str, Any] = field(default_factory=dict)
    tool_use: ToolUse = NO_TOOLS


Prompt: TypeAlias = str | Sequence[int] | Chat
"""Text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    id: str
    """Unique among running requests."""
    prompts: Sequence[Prompt]
    options: SamplingOptions
    model: str = ""
    """Empty: the served one."""
    n: int = 1
    """Completions of every prompt."""
    priority: int = 0
    """Other than 0 only where the scheduler goes by it, and within the limit of the client's key."""
    ttft_deadline_s: float = 0.0
    """For the first token; 0: none. Only where the scheduler goes by it."""
    timeout_s: float = 0.0
    """0: no deadline."""
    timings: bool = False
    """Whether the last chunk of every completion brings the TTFT waterfall."""
