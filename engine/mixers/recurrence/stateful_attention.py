"""Attention and recurrence of a model that has both."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.core.batch.batch import Batch
from engine.mixers.attention.base import AttentionBackend, GraphableAttention
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.layers.recurrent import RecurrentWeights


class Recurrence(Protocol):
    """The layers with a state; a step calls `prepare` once, then `recur` once a layer."""

    def prepare(self, batch: Batch) -> None: ...

    def recur(
        self,
        layer: int,
        mixed: torch.Tensor,
        log_decay: torch.Tensor,
        beta: torch.Tensor,
        weights: RecurrentWeights,
    ) -> torch.Tensor:
        """See `RecurrentAttention.recur`. Of verify chunks it writes no state: `keep` does."""

    def keep(self, accepted: torch.Tensor) -> None:
        """Behind the last layer: write the states of verify chunks, in the batch's order, after their first
        token and `accepted` [C] drafts."""


class GraphableRecurrence(Recurrence, Protocol):
    """One whose decodes can be captured in CUDA graphs: see `GraphableAttention`."""

    def init_graphs(self, max_batch: int) -> None: ...

    def prepare_capture(self, batch_size: int) -> None: ...

    def prepare_replay(self, batch: Batch, batch_size: int) -> None: ...


class StatefulAttention:
    """An `AttentionBackend` that also computes the layers with a state: a `RecurrentAttention`."""

    def __init__(self, attention: AttentionBackend, recurrence: Recurrence) -> None:
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
        weights: RecurrentWeights,
    ) -> torch.Tensor:
        return self._recurrence.recur(layer, mixed, log_decay, beta, weights)

    def keep(self, accepted: torch.Tensor) -> None:
        self._recurrence.keep(accepted)


class GraphableStateful(StatefulAttention):
    """The same as a `GraphableAttention`."""

    def __init__(self, attention: GraphableAttention, recurrence: GraphableRecurrence) -> None:
        super().__init__(attention, recurrence)
        self._graphable = attention, recurrence

    def init_graphs(self, max_batch: int, max_model_len: int) -> None:
        attention, recurrence = self._graphable
        attention.init_graphs(max_batch, max_model_len)
        recurrence.init_graphs(max_batch)

    def prepare_capture(self, slots: torch.Tensor) -> None:
        attention, recurrence = self._graphable
        attention.prepare_capture(slots)
        recurrence.prepare_capture(slots.shape[1])

    def prepare_replay(self, batch: Batch, batch_size: int) -> None:
        for part in self._graphable:
            part.prepare_replay(batch, batch_size)
