"""Hidden states that a model exposes to its draft head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.core.batch.batch import Batch
from engine.core.plan import StepPlan
from engine.modeling.models.base import CausalLM


class HiddenStates(Protocol):
    """Follows the steps of one runner. What it enqueues on the device is in order with the steps."""

    def planned(self, plan: StepPlan) -> None:
        """This step is computed next."""

    def before(self, batch: Batch) -> None:
        """The forward pass of this batch comes next."""

    def after(self, batch: Batch, hidden: torch.Tensor) -> None:
        """`hidden`: for the T rows of the batch, what `forward` returned."""


@dataclass(frozen=True, slots=True)
class Companion:
    """A second model of the runner, which works with its hidden states."""

    adapt: Callable[[CausalLM], None]
    """Called when the runner's model is loaded, before its memory is measured and graphs are captured."""
    page_bytes: int = 0
    """What the other model stores for each page of the pool."""
    other_bytes: int = 0
    """Its memory that does not grow with the pool."""
