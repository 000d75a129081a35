"""What the model runner needs of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor, nn

from engine.models.layers import Embedding, Linear
from engine.models.spec import ModelSpec
from engine.models.weights import WeightTable

__all__ = ["Attention", "CausalLM"]


class Attention(Protocol):
    """Attention over all earlier tokens of each sequence; it owns the KV pool, so it stores k and v too."""

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [T, H, D], k and v [T, KVH, D] -> [T, H, D], scaled by D ** -0.5. Strided views are welcome."""
        ...


class CausalLM(nn.Module, ABC):
    """A decoder-only transformer over a flat batch of tokens, whatever sequences they belong to."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = Embedding(spec.vocab_size, spec.hidden_size)
        self.head = Linear(spec.hidden_size, spec.vocab_size, bias=False)
        if spec.tied_embeddings:
            self.head.weight = self.embed.weight

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        """Final hidden states [T, d] of tokens `input_ids` [T] at absolute `positions` [T]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all vocabulary entries, [S, vocab] in the model's dtype, for rows `hidden` [S, d]."""
        scores: Tensor = self.head(hidden)
        return scores

    def pack(self) -> None:
        """Lay out all weights for speed, one at a time. The head of tied embeddings becomes a copy."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    @abstractmethod
    def weight_table(self) -> WeightTable:
        """Which modules of the checkpoint fill which modules of this model."""

    def source_name(self, name: str) -> str:
        """The name in `weight_table` of the checkpoint's tensor `name`, where spellings vary."""
        return name

    def ignores(self, name: str) -> bool:
        """Whether the checkpoint's tensor `name` carries nothing that this model needs."""
        return self.spec.tied_embeddings and name == "lm_head.weight"
