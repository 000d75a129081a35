"""What the model runner needs of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor, nn

from engine.layers.modules import Embedding, Linear
from engine.layers.ops import Rotation
from engine.layers.sharded import head_of
from engine.models.weight_table import ParamSlice, WeightTable
from engine.parallel.communicator import Communicator
from engine.spec.model_spec import ModelSpec
from engine.spec.shard import Cut

__all__ = ["Attention", "CausalLM"]


class Attention(Protocol):
    """Attention over all earlier tokens of each sequence; it owns the KV pool, so it stores k and v too."""

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        """Queries, keys and values side by side, [T, H + 2 * KVH, D] -> [T, H, D], scaled by D ** -0.5.

        Queries and keys are still to be turned by `rotation`; None: positions are not rotary. `qkv` is given
        away.
        """
        ...


class CausalLM(nn.Module, ABC):
    """A decoder-only transformer over a flat batch of tokens, whatever sequences they belong to."""

    def __init__(self, spec: ModelSpec, communicator: Communicator) -> None:
        super().__init__()
        self.spec = spec
        """Of the whole model, over all ranks."""
        self.shard = communicator.shard
        self.part = communicator.shard.of(spec)
        """The shape of what this rank computes."""
        self.embed = Embedding(spec.vocab_size, spec.hidden_size)
        self.head = head_of(self.embed, communicator, tied=spec.tied_embeddings)

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, attn: Attention) -> Tensor:
        """Final hidden states [T, d] of tokens `input_ids` [T] at absolute `positions` [T]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of all vocabulary entries, [S, vocab] in the model's dtype, for rows `hidden` [S, d].

        On ranks that do not lead, only of those that are theirs.
        """
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

    def head_param(self) -> ParamSlice:
        """Where a head that is not tied comes from."""
        vocab = self.spec.vocab_size
        return ParamSlice("head", cut=Cut(0, vocab, (self.shard.vocabulary(vocab),)))

    def source_name(self, name: str) -> str:
        """The name in `weight_table` of the checkpoint's tensor `name`, where spellings vary."""
        return name

    def ignores(self, name: str) -> bool:
        """Whether the checkpoint's tensor `name` carries nothing that this model needs."""
        return self.spec.tied_embeddings and name == "lm_head.weight"
