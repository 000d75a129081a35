"""What `LLM.generate` returns, by vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int
    """1 is the most likely."""
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token, by token id: the token itself and the most likely ones. None if not asked for."""
    finish_reason: str | None = None
    """"stop", "length", or "error": see `error`; text and token_ids hold what came before."""
    stop_reason: str | int | None = None
    """The stop string, or the EOS or stop token, that ended it."""
    error: str | None = None
    """Why this answer could not be computed; the other answers are not affected."""

    receipt: dict[str, Any] | None = None
    """Digests of everything that it was computed from: docs/receipts.md. None if not asked for."""

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over all tokens; None if logprobs were not asked for."""
        if self.logprobs is None:
            return None
        return sum(of[token].logprob for token, of in zip(self.token_ids, self.logprobs, strict=True))


@dataclass(slots=True)
class RequestOutput:
    """All answers to one prompt."""

    request_id: str
    prompt: str | None
    """None for a prompt given as token ids."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    finished: bool = True
