"""Ways to compute a step: kernel by kernel, or as graphs that were captured before."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol, TypeAlias

import torch

from engine.attention.base import AttentionBackend
from engine.batch.batch import Batch
from engine.models.base import CausalLM

__all__ = ["Eager", "Enqueuing", "Forward"]

Enqueuing: TypeAlias = Generator[None, None, torch.Tensor]
"""Enqueues a forward pass on the device; returns its hidden states.

Yields where the device has enough to do for the host to turn to something else for a moment.
"""


class Forward(Protocol):
    """One forward pass: `prepare`, then `run`, with the same batch and nothing between them."""

    def fits(self, batch: Batch) -> bool:
        """Whether this way can be taken."""

    def prepare(self, batch: Batch) -> None:
        """Plan, and enqueue what the device needs to know. What comes before its first work is all here."""

    def run(self, batch: Batch) -> Enqueuing:
        """Hidden states of T tokens and any padding; the KV of every token is in the pool afterwards."""


class Eager:
    """Kernel by kernel: takes any batch."""

    def __init__(self, model: CausalLM, attention: AttentionBackend) -> None:
        self._model = model
        self._attention = attention

    def fits(self, batch: Batch) -> bool:
        return True

    def prepare(self, batch: Batch) -> None:
        self._attention.prepare(batch)

    def run(self, batch: Batch) -> Enqueuing:
        hidden: torch.Tensor = self._model(batch.input_ids, batch.positions, self._attention)
        yield
        return hidden
