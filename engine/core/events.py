"""Output of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.core.request import Request, TokenId
from engine.core.sampling_params import FinishReason, TokenLogprobs
from engine.errors import EngineError
from engine.kv_cache.pages import PageCounts

__all__ = ["EngineStats", "StepMeasured", "StepOutput", "TokenOut"]


@dataclass(frozen=True, slots=True)
class TokenOut:
    """A new token of one request."""

    request: Request
    token: TokenId
    logprobs: TokenLogprobs | None
    finish: FinishReason | None
    is_stop: bool = False
    """The token itself ended the request: end of sequence, or one of its stop tokens."""


@dataclass(frozen=True, slots=True)
class StepMeasured:
    """What a step computed, and how long it took."""

    prompt_tokens: int
    attention_pairs: float
    """Pairs of a prompt token and a token that it attends to."""
    decodes: int
    context_tokens: int
    """Sum of the context lengths of all decodes."""
    seconds: float


@dataclass(slots=True)
class StepOutput:
    tokens: list[TokenOut] = field(default_factory=list)
    started: list[Request] = field(default_factory=list)
    """Requests whose first chunk is being computed."""
    failed: list[tuple[Request, EngineError]] = field(default_factory=list)
    """Requests that failed; others in the step are not affected. An InvalidRequest is the client's fault."""
    num_tokens: int = 0
    """Tokens computed by the step; 0: it had no work."""
    completed: bool = False
    """Whether a step has completed, perhaps without tokens; its pages may be free now."""
    measured: StepMeasured | None = None
    """Work and time of that step; only a sample of steps is measured."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    waiting: int
    starved: int
    """`waiting` if any waiting request lacks pages or was preempted; 0 if all only wait for token budget."""
    running: int
    waiting_tokens: int
    """Prompt tokens not yet computed."""
    available_pages: int
    """Free, or cached and unlocked."""
    pages: PageCounts
    steps: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
    cache_hit_tokens: int
