"""Multi-head latent attention (MLA): one row per token in place of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model_config.errors import UnsupportedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """Sparse attention (DSA): a token attends to the `chosen` tokens before it with the best scores.

    The score of a token is a weighted sum over heads: of the product of a query with the token's key where it
    is positive. (DeepSeek-V3.2, 2025.)
    """

    heads: int
    dim: int
    """Features of each head's queries, and of the one key of a token."""
    chosen: int
    interleaved: bool
    """Whether the pairs that are rotated together are neighbours, instead of half the features apart."""
    shared: frozenset[int] = frozenset()
    """Layers without an indexer, which attend to the tokens that the layer before them attends to."""

    def __post_init__(self) -> None:
        if 0 in self.shared:
            raise UnsupportedModel(
                "the first layer has no indexer, and no layer before it whose choice it has"
            )

    def weights(self, hidden: int, query_rank: int) -> int:
        """Weights of a layer's indexer."""
        return query_rank * self.heads * self.dim + hidden * (self.dim + self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """All heads' keys and values are products of a token's latent; a rotated part is common to all keys.

    (DeepSeek-V2, 2024.)
    """

    rank: int
    """Features of the latent."""
    rotated: int
    """Features of the rotated part of queries and keys."""
    unrotated: int
    """Features of the rest of each head's queries and keys."""
    value_dim: int
    """Features of each head's values."""
    query_rank: int | None
    """Features of the latent of queries; None: queries are projected directly."""
    interleaved: bool = True
    """Whether the pairs that are rotated together are neighbours, instead of half the features apart."""
    indexer: IndexerSpec | None = None
    """None: a token attends to all tokens before it."""

    @property
    def row(self) -> int:
        """Features of a token's latent and of the rotated part."""
        return self.rank + self.rotated

    @property
    def stored(self) -> int:
        """Features that are stored for a token and a layer: the row, then the key of the indexer."""
        return self.row + (0 if self.indexer is None else self.indexer.dim)

    @property
    def query_dim(self) -> int:
        """Features of a head's queries before the product with its key matrix is absorbed."""
        return self.unrotated + self.rotated

    def weights(self, hidden: int, heads: int, layers: int) -> int:
        """Weights of the projections of all layers."""
        queries, indexer = heads * self.query_dim, self.indexer
        projections = hidden * queries if self.query_rank is None else self.query_rank * (hidden + queries)
        expansion = self.rank * heads * (self.unrotated + self.value_dim)
        each = projections + hidden * self.row + expansion + heads * self.value_dim * hidden
        if indexer is None or self.query_rank is None:
            return layers * each
        return layers * each + (layers - len(indexer.shared)) * indexer.weights(hidden, self.query_rank)
