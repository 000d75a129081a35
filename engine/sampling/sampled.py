"""What a sampler hands on: tokens, and what is reported beside them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling.logprobs import LogprobTensors

__all__ = ["Sampled"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen for S rows; still on the device."""

    tokens: torch.Tensor
    """[S] int64."""
    finite: torch.Tensor
    """[S] bool: False where the logits were not finite, so that the token means nothing."""
    logprobs: LogprobTensors | None
    """Of the rows whose requests asked for them, in order."""

    def tensors(self) -> list[torch.Tensor]:
        """All of them: tokens, finite, and those of the log-probabilities if there are any."""
        logprobs = self.logprobs
        if logprobs is None:
            return [self.tokens, self.finite]
        return [self.tokens, self.finite, logprobs.chosen, logprobs.rank, logprobs.top, logprobs.top_ids]
