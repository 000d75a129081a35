"""The result of a sampler: tokens and their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling.logprobs import LogprobTensors


@dataclass(frozen=True, slots=True)
class Sampled:
    """Chosen tokens of S rows, on the device."""

    tokens: torch.Tensor
    """[S] int64."""
    finite: torch.Tensor
    """[S] bool: False where logits were not finite; the token is then undefined."""
    logprobs: LogprobTensors | None
    """For the rows whose requests asked for them, in order."""

    def tensors(self) -> list[torch.Tensor]:
        """All tensors: tokens, finite, and those of the log-probabilities if there are any."""
        logprobs = self.logprobs
        if logprobs is None:
            return [self.tokens, self.finite]
        return [self.tokens, self.finite, *logprobs.tensors()]
