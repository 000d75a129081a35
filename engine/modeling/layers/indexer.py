"""The indexer of sparse attention: what the choice of the tokens that a token attends to follows from."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.model_config.parts.latent_spec import IndexerSpec, LatentSpec
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.linear.linear_layer import weight
from engine.modeling.layers.modules import LayerNorm
from engine.modeling.layers.ops.ops import Rotation

_EPS: Final = 1e-6


class IndexRows(NamedTuple):
    """What a layer's indexer has computed of T tokens. See `IndexerSpec`."""

    queries: Tensor
    """[T, heads, dim], rotated."""
    weights: Tensor
    """[T, heads] float32: factors of the products of queries and keys, where these are positive."""
    keys: Tensor
    """[T, dim], rotated."""


class Indexer(nn.Module):
    """Every rank has all of it, so that all of them choose the same tokens."""

    def __init__(self, spec: IndexerSpec, latent: LatentSpec, hidden: int, layers: Layers) -> None:
        super().__init__()
        assert latent.query_rank is not None, "it reads the latent of queries"
        self._spec, self._rotated = spec, latent.rotated
        self.queries = layers.linear(
            "self_attn.indexer.wq_b",
            in_features=latent.query_rank,
            out_features=spec.heads * spec.dim,
            bias=False,
        )
        self.key = layers.linear(
            "self_attn.indexer.wk", in_features=hidden, out_features=spec.dim, bias=False
        )
        self.key_norm = LayerNorm(spec.dim, _EPS)
        self.head_weights = _HeadWeights(hidden, spec)

    def forward(self, x: Tensor, query_latent: Tensor, rotation: Rotation) -> IndexRows:
        """`x` [T, d] and the normalised latent of its queries."""
        queries = self.queries(query_latent).view(len(x), self._spec.heads, self._spec.dim)
        keys = self.key_norm(self.key(x))
        heads = torch.cat((queries, keys[:, None]), dim=1)
        turned = heads[..., : self._rotated]
        if self._spec.interleaved:
            turned = turned.reshape(*turned.shape[:2], -1, 2).transpose(2, 3).flatten(2)
        heads = torch.cat((rotation.turn(turned.contiguous()), heads[..., self._rotated :]), dim=2)
        return IndexRows(heads[:, :-1], self.head_weights(x), heads[:, -1])


class _HeadWeights(nn.Module):
    """In float32 whatever the model's dtype: a rounded score may choose another token."""

    def __init__(self, hidden: int, spec: IndexerSpec) -> None:
        super().__init__()
        self.weight = weight(spec.heads, hidden, dtype=torch.float32)
        self._scale = (spec.heads * spec.dim) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        products: Tensor = functional.linear(x.float(), self.weight) * self._scale
        return products
