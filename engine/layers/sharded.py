"""Layers that communicate between tensor-parallel ranks; with one rank, plain layers.

Queries, keys, values and the MLP's first product are column-parallel: plain `Linear`s with fewer output
features. The products after them are row-parallel: split by input features, and summed over ranks.
"""

from __future__ import annotations

from torch import Tensor

from engine.layers.modules import Embedding, Linear
from engine.parallel.communicator import Communicator

__all__ = ["head_of", "sum_linear"]


def sum_linear(in_features: int, out_features: int, *, bias: bool, communicator: Communicator) -> Linear:
    """A row-parallel linear layer: x [T, in] -> [T, out], where `in_features` is this rank's share."""
    if communicator.shard.size == 1:
        return Linear(in_features, out_features, bias=bias)
    return _SumLinear(in_features, out_features, bias=bias, communicator=communicator)


def head_of(embed: Embedding, communicator: Communicator, *, tied: bool) -> Linear:
    """The language-model head: hidden [S, d] -> logits [S, vocab] on the leader; shares `embed` if tied."""
    vocab, features = embed.weight.shape
    if communicator.shard.size > 1:
        return _VocabularyHead(embed, communicator, tied=tied)
    head = Linear(features, vocab, bias=False)
    if tied:
        head.weight = embed.weight
    return head


class _SumLinear(Linear):
    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, communicator: Communicator
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias if self._communicator.shard.is_first_rank else None  # added once, not once per rank
        return self._communicator.all_reduce(self.product(x, bias))


class _VocabularyHead(Linear):
    """A vocabulary-parallel head: each rank computes the logits of its part, and the leader gathers them.

    Reading the head's weights takes a large part of a small decode step, while the logits of the few sampled
    rows are small, so the weights are split and the logits are communicated. Every rank holds the whole
    embedding, since lookups read only a few rows of it.
    """

    def __init__(self, embed: Embedding, communicator: Communicator, *, tied: bool) -> None:
        self._vocab, features = embed.weight.shape
        mine = communicator.shard.vocabulary(self._vocab)
        super().__init__(features, len(mine), bias=False)
        self._communicator = communicator
        if tied:
            # A view, not a parameter: loading the embedding fills it.
            del self.weight
            self.register_buffer("weight", embed.weight.detach()[mine.start : mine.stop], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._communicator.gather_columns(super().forward(x), self._vocab)
