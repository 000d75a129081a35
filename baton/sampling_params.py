"""How answers are sampled, by vLLM's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.api.generation.params.sampling_options import SamplingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams(SamplingOptions):
    """Sampling parameters of one prompt, or of all. Out-of-range values raise ValueError when they are used.

    temperature, top_p, top_k, min_p and repetition_penalty are those of the model's generation_config.json
    unless they are given; with `LLM(generation_config="none")`, vLLM's.
    """

    n: int = 1
    """Answers for each prompt."""
    max_tokens: int | None = 16
    """None: as many as the context holds; more are cut to it."""
    logit_bias: Mapping[int, float] | None = None  # type: ignore[assignment]
    """Added to the logits of these tokens."""
    stop: str | Sequence[str] | None = None  # type: ignore[assignment]
    stop_token_ids: Sequence[int] | None = None  # type: ignore[assignment]

    cut_max_tokens: bool = field(default=True, init=False)
    prompt_logprobs: None = field(default=None, init=False)
    logprob_token_ids: tuple[int, ...] = field(default=(), init=False)
    skip_special_tokens: bool = field(default=True, init=False)
    constraint: None = field(default=None, init=False)

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "logit_bias", dict(self.logit_bias or {}))
