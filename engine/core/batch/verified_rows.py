"""How many drafts of a step are right, on the device: for states that are to follow the right ones alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.core.batch.step_inputs import Ints
from engine.device.staging import send


@dataclass(frozen=True, slots=True)
class VerifiedRows:
    """Rows of C verify chunks with at most K drafted tokens: int64 tensors [C, K] on the device."""

    drafted: torch.Tensor
    """Rows of drafted tokens."""
    sampled: torch.Tensor
    """Place of the row before each of them among the rows that sample."""
    exists: torch.Tensor
    """1, or 0 after the last drafted token of a chunk."""

    @classmethod
    def of(cls, firsts: Ints, runs: Ints, samples: Ints, device: torch.device) -> VerifiedRows | None:
        """`firsts` [C]: the first row of each chunk, `runs` [C]: how many it has, each of which samples.
        `samples`: of each row of the batch, how many rows up to it sample. None if there are no chunks."""
        if not len(firsts):
            return None
        steps = np.arange(1, runs.max())
        exists = steps < runs[:, None]
        drafted = np.where(exists, firsts[:, None] + steps, firsts[:, None])
        return cls(*send([drafted, samples[drafted - exists] - 1, exists.astype(np.int64)], device))

    def accepted(self, input_ids: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """[C]: leading drafts that are what was sampled, from the step's input ids [T] and tokens [S]."""
        right = (input_ids[self.drafted] == tokens[self.sampled]).long() * self.exists
        return right.cumprod(dim=1).sum(dim=1)
