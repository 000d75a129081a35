"""How answers are sampled, by vLLM's names and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from router.errors import InvalidRequest
from router.processing.params.bounds import ServedBounds
from router.processing.params.sampling_options import SamplingOptions

_CONVERTED: Final = frozenset({"logit_bias", "stop", "stop_token_ids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Of one prompt, or of all. Out-of-range values raise ValueError when they are used."""

    n: int = 1
    """Answers for each prompt."""
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1 turn it off."""
    min_p: float = 0.0
    seed: int | None = None
    """The same seed gives the same answer; None: drawn."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of these tokens."""
    logprobs: int | None = None
    """Alternatives reported for each token; 0: the token's own alone; None: none."""
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False

    def options(self, bounds: ServedBounds) -> SamplingOptions:
        """As the router's, checked; as in vLLM, `max_tokens` is cut to the context. Raises ValueError."""
        if self.n < 1:
            raise ValueError(f"n must be at least 1, not {self.n}.")
        same = {f.name for f in fields(SamplingOptions)} & {f.name for f in fields(self)}
        values = {name: getattr(self, name) for name in same - _CONVERTED}
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        options = SamplingOptions(
            **values,
            cut_max_tokens=True,
            logit_bias=dict(self.logit_bias or {}),
            stop=stop,
            stop_token_ids=tuple(self.stop_token_ids or ()),
        )
        try:
            options.check(bounds)
        except InvalidRequest as error:
            raise ValueError(str(error)) from None
        return options
