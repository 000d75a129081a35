"""Ways to compute a step: eagerly, or as captured CUDA graphs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeAlias

import torch

from engine.core.batch.batch import Batch
from engine.executor.device_step import Pause
from engine.mixers.attention.base import AttentionBackend
from engine.modeling.models.base import CausalLM

Enqueuing: TypeAlias = Generator[None, None, torch.Tensor]
"""Enqueues a forward pass on the device; returns its hidden states.

Yields where enough is enqueued for the host to do other work meanwhile.
"""


class Forward(Protocol):
    """One forward pass: `place`, `prepare`, then `run`, for one batch and with no other between them."""

    def fits(self, num_chunks: int, num_rows: int) -> bool:
        """Whether this forward can compute a batch of `num_rows`; `num_chunks`: see `Batch`."""

    def place(self, num_rows: int) -> torch.Tensor | None:
        """Where such a batch is to be built; None: anywhere. See `BatchBuilder.build`."""

    def prepare(self, batch: Batch) -> None:
        """Plan attention and enqueue the copies that come before the first kernel."""

    def run(self, batch: Batch) -> Enqueuing:
        """Hidden states of T tokens and any padding; the KV of every token is in the pool afterwards."""


class Eager:
    """Kernel by kernel; computes any batch."""

    def __init__(
        self, model: CausalLM, attention: AttentionBackend, masked: AttentionBackend | None = None
    ) -> None:
        """`masked`: for steps with images whose tokens see those after them."""
        self._model = model
        self._causal = self._attention = attention
        self._masked = masked or attention

    def fits(self, num_chunks: int, num_rows: int) -> bool:
        return True

    def place(self, num_rows: int) -> None:
        return None

    def prepare(self, batch: Batch) -> None:
        spans = batch.media is not None and batch.media.spans
        self._attention = self._masked if spans else self._causal
        self._attention.prepare(batch)
        self._model.expect(batch.num_rows)
        self._model.adapt(batch.rows if batch.adapted else None)

    def run(self, batch: Batch) -> Enqueuing:
        self._model.media = batch.media
        hidden: torch.Tensor = self._model(batch.input_ids, batch.rotary_positions, self._attention)
        yield
        return hidden


def busy(forward: Enqueuing) -> Generator[Pause, None, torch.Tensor]:
    while True:
        try:
            next(forward)
        except StopIteration as end:
            hidden: torch.Tensor = end.value
            return hidden
        yield Pause.BUSY
