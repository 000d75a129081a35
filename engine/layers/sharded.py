"""The layers at which ranks that share a model meet; where there is one rank, plain ones.

Queries, keys, values and the MLP's first product are shared out by output features: plain `Linear`s, only
narrower. The products behind them are shared out by input features, and their sum over ranks is the result.
"""

from __future__ import annotations

from torch import Tensor

from engine.layers.modules import Embedding, Linear
from engine.parallel.communicator import Communicator

__all__ = ["head_of", "sum_linear"]


def sum_linear(in_features: int, out_features: int, *, bias: bool, communicator: Communicator) -> Linear:
    """x [T, in] -> [T, out], where every rank brings its own `in_features`."""
    if communicator.shard.size == 1:
        return Linear(in_features, out_features, bias=bias)
    return _SumLinear(in_features, out_features, bias=bias, communicator=communicator)


def head_of(embed: Embedding, communicator: Communicator, *, tied: bool) -> Linear:
    """hidden [S, d] -> logits [S, vocab] on the leader, from weights of its own or, if tied, `embed`'s."""
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
        bias = self.bias if self._communicator.shard.is_first_rank else None  # summed, it must come in once
        return self._communicator.all_reduce(self.product(x, bias))


class _VocabularyHead(Linear):
    """Each rank scores a part of the vocabulary, and the leader gets all parts.

    To read the head's weights is a good part of a small decode step, while the logits of the few rows that
    sample are small: so the weights are shared out and the logits travel. The embedding is looked up, not
    read through, and every rank holds it whole.
    """

    def __init__(self, embed: Embedding, communicator: Communicator, *, tied: bool) -> None:
        self._vocab, features = embed.weight.shape
        mine = communicator.shard.vocabulary(self._vocab)
        super().__init__(features, len(mine), bias=False)
        self._communicator = communicator
        if tied:
            # A view and no parameter: whatever fills the embedding fills this.
            del self.weight
            self.register_buffer("weight", embed.weight.detach()[mine.start : mine.stop], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self._communicator.gather_columns(super().forward(x), self._vocab)
