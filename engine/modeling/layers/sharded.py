"""Linear layers that communicate between tensor-parallel ranks."""

from __future__ import annotations

from torch import Tensor

from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod
from engine.modeling.layers.modules import Embedding
from engine.parallel.communicator import Communicator


class SumLinear(Linear):
    """Row-parallel: every rank has a share of the input features, and the products are summed over ranks."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        communicator: Communicator,
        method: LinearMethod,
    ) -> None:
        """`in_features`: this rank's share."""
        super().__init__(in_features, out_features, bias=bias, method=method)
        self._communicator = communicator

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias if self._communicator.shard.is_first_rank else None  # added once, not once per rank
        return self._communicator.all_reduce(self.product(x, bias))


class VocabularyHead(Linear):
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
