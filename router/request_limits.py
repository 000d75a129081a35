"""Limits of one request, apart from its size in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LOGPROBS_LIMIT: Final = 20
"""OpenAI's."""
MAX_COMPLETIONS: Final = 256
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_MESSAGES: Final = 20_000
"""Most messages of a conversation. Over HTTP, 100,000 objects and fields are the bound, three for a message.
"""
MAX_CACHE_KEY: Final = 512
"""Characters."""
MAX_CACHE_SALT: Final = 512
"""Characters."""
MAX_RETENTION_S: Final = 24 * 60 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    max_prompt_tokens: int | None = None
    """None: as many as fit the context."""
    max_completions: int = MAX_COMPLETIONS
    """Prompts times n."""
    max_logprobs: int = LOGPROBS_LIMIT
    """Alternatives per token."""
    priorities: bool = False
    """Whether the scheduling policy uses priorities."""
    ttft_deadlines: bool = False
    """Whether the scheduling policy uses deadlines of first tokens."""
    separate_tenants: bool = False
    """Whether the requests of one API key share no KV with those of others."""
    routed_experts: bool = False
    """Whether workers keep the experts of each token."""
    retention: bool = False
    """Whether requests may retain KV; otherwise it has no effect that they ask for it."""
