"""Output of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from engine.core.media import Encoding
from engine.core.output import Output
from engine.core.plan import ChunkKind, StepPlan
from engine.core.request import Request, TokenId
from engine.core.sampling_params import FinishReason, TokenLogprobs
from engine.errors import EngineError


class TokenOut(NamedTuple):
    """A new token of one request. A tuple, as `Chunk` is one."""

    request: Request
    token: TokenId
    position: int
    """In the answer, counted from 0."""
    logprobs: TokenLogprobs | None
    finish: FinishReason | None
    is_stop: bool = False
    """The token itself ended the request: end of sequence, or one of its stop tokens."""


class Verified(NamedTuple):
    """Drafted tokens of one request that a step has verified. A tuple, as `Chunk` is one."""

    request: Request
    drafted: int
    accepted: int
    """The first ones, as many as were right."""
    predicted: bool
    """They are from the client's prediction."""


@dataclass(frozen=True, slots=True)
class StepMeasured:
    """What a step computed, and how long it took."""

    prompt_tokens: int
    attention_pairs: float
    """Pairs of a prompt token and a token that it attends to."""
    answers: int
    """Requests that decode."""
    decodes: int
    """Rows of those: one of each, and one for each drafted token."""
    context_tokens: int
    """Sum of the context lengths of all these rows."""
    tokens: int
    """What those requests got: one token of each, and the drafted ones that were right."""
    seconds: float

    @classmethod
    def of(cls, plan: StepPlan, seconds: float, accepted: int = 0) -> StepMeasured:
        """`accepted`: drafted tokens that were right. O(chunks)."""
        prompts = plan.prompts
        chunks = [chunk for chunk in plan.chunks if chunk.kind is not ChunkKind.PREFILL]
        # The rows of a chunk have contexts of start + 1 to start + length tokens.
        contexts = [chunk.length * chunk.start + chunk.length * (chunk.length + 1) // 2 for chunk in chunks]
        return cls(
            prompt_tokens=sum(chunk.length for chunk in prompts),
            attention_pairs=sum(chunk.length * (chunk.start + chunk.length / 2) for chunk in prompts),
            answers=len(chunks),
            decodes=len(chunks) + plan.num_drafted,
            context_tokens=sum(contexts),
            tokens=len(chunks) + accepted,
            seconds=seconds,
        )


@dataclass(slots=True)
class StepOutput:
    tokens: list[TokenOut] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    """At most one for each request; its tokens are in `tokens`."""
    outputs: list[tuple[Request, Output]] = field(default_factory=list)
    """Log-probabilities of each request in the order of its prompt, without gaps, and before its first token.
    """
    read: list[Request] = field(default_factory=list)
    """Requests that have ended without a token, after what they wanted to read, which is in `outputs`."""
    started: list[Request] = field(default_factory=list)
    """Requests whose first chunk is being computed."""
    preempted: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, EngineError]] = field(default_factory=list)
    """Requests that failed; others in the step are not affected. An InvalidRequest is the client's fault."""
    encoded: list[tuple[Request, Encoding]] = field(default_factory=list)
    """Media items that a completed step has encoded."""
    num_tokens: int = 0
    """Tokens computed by the step; 0: it had no work."""
    num_prompts: int = 0
    """Prompt chunks of the step; all other tokens are decodes."""
    prompt_tokens: int = 0
    """Tokens of those chunks."""
    num_single: int = 0
    """Requests that start with one token, since the rest of their prompt is cached: not in `num_prompts`."""
    completed: bool = False
    """Whether a step completed, perhaps without tokens: requests that waited for its pages may continue."""
    blocked: bool = False
    """There is nothing to compute before the step in flight ends, and it has not: see `Engine.step`."""
    measured: StepMeasured | None = None
    """Work and time of that step; only a sample of steps is measured."""
    expected_s: float = 0.0
    """Seconds that it was expected to take since the one before it; 0: unknown."""

    def describe(self, plan: StepPlan) -> None:
        """Take over what a step's plan says about it."""
        self.started, self.preempted, self.resumed = plan.started, plan.preempted, plan.resumed
        self.num_tokens = plan.num_tokens
        self.num_prompts, self.prompt_tokens = plan.num_prompts, plan.prompt_tokens
        self.num_single = plan.num_single

    @property
    def has_both(self) -> bool:
        """Prompts and decodes in one step."""
        return 0 < self.prompt_tokens < self.num_tokens


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the engine is: O(1), for every step."""

    waiting: int
    running: int
    used_pages: int
    """Held by requests or in flight: neither free nor evictable."""
    total_pages: int
    paced_tokens: int | None = None
    """Prompt tokens that the ITL target leaves room for in a step with decodes; None: there is no target."""

    @property
    def usage(self) -> float:
        """0 to 1: SGLang's token usage."""
        return self.used_pages / self.total_pages
