"""How much one request may ask for; how large it may be is for the frontends to say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["LOGPROBS_LIMIT", "MAX_COMPLETIONS", "RequestLimits"]

LOGPROBS_LIMIT: Final = 20
"""OpenAI's."""
MAX_COMPLETIONS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    max_prompt_tokens: int | None = None
    """None: as many as the context holds."""
    max_completions: int = MAX_COMPLETIONS
    """Prompts times n."""
    max_logprobs: int = LOGPROBS_LIMIT
    """Alternatives a token."""
