"""How evenly tokens are distributed over experts, measured beside the steps."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from engine.device.staging import Readback
from engine.modeling.layers.experts import ExpertRouter

_STEPS: Final = 32
"""From one copy of the counts to the next."""


class ExpertLoad:
    """Reads the counts of all routers now and then. Never waits for the device."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._routers = [module for module in model.modules() if isinstance(module, ExpertRouter)]
        self._device = device
        self._steps = 0
        self._copy: Readback | None = None
        self._before: Tensor | None = None
        self.imbalance: float | None = None
        """Tokens of a layer's busiest expert relative to the mean, averaged over layers; None: unknown."""

    def on_step(self) -> None:
        """Before a step is enqueued."""
        self._steps += 1
        if not self._routers or self._steps % _STEPS:
            return
        if self._copy is not None and self._copy.done():
            (counts,) = self._copy.wait()
            self._take(counts)
            self._copy = None
        if self._copy is None:
            self._copy = Readback([torch.stack([router.counts for router in self._routers])], self._device)

    def _take(self, counts: Tensor) -> None:
        """`counts` [layers, experts]: tokens since the start."""
        recent = (counts if self._before is None else counts - self._before).double()
        self._before = counts
        if recent.sum(dim=1).min() > 0:
            self.imbalance = float((recent.amax(dim=1) / recent.mean(dim=1)).mean())
