"""Attention and recurrence of a model that has both."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.batch.batch import Batch
from engine.layers.ops import Rotation
from engine.recurrence.torch_recurrence import TorchRecurrence

__all__ = ["StatefulAttention"]


class StatefulAttention:
    """An `AttentionBackend` that also computes the layers with a state: a `RecurrentAttention`."""

    def __init__(self, attention: AttentionBackend, recurrence: TorchRecurrence) -> None:
        self._attention = attention
        self._recurrence = recurrence

    def prepare(self, batch: Batch) -> None:
        self._attention.prepare(batch)
        self._recurrence.prepare(batch)

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        return self._attention.forward(layer, qkv, rotation)

    def recur(
        self,
        layer: int,
        mixed: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        kernel: torch.Tensor,
    ) -> torch.Tensor:
        return self._recurrence.recur(layer, mixed, log_decay, beta, kernel)
