"""What heads have in common that draft from the hidden states of another model, their target."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from engine.model_config.model_spec import ModelSpec
from engine.modeling.models.base import CausalLM


class DraftHead(CausalLM):
    """Row i has token i + 1 and the features of the target's token i, and predicts token i + 2.

    `forward` returns two hidden states per row, [T, 2 * d]: the one that `logits` takes, and the features for
    the row after it, where the target has none yet.
    """

    features: Tensor
    """[largest step, d]: of the next forward pass's rows, at a fixed address for CUDA graphs."""

    def make_room(self, rows: int) -> None:
        """For the features of a step of as many rows."""
        device, dtype = self.embed.weight.device, self.embed.weight.dtype
        self.features = torch.zeros(rows, self.spec.hidden_size, device=device, dtype=dtype)

    @staticmethod
    def num_embeddings(spec: ModelSpec) -> int:
        """None of its own: see `share`."""
        return 0

    def share(self, target: CausalLM) -> None:
        """Use the target's embedding, with which heads are trained."""
        self.embed = target.embed

    @abstractmethod
    def features_of(self, hidden: Tensor) -> Tensor:
        """Features [T, d] of the target's tokens, from what its `forward` returned."""
