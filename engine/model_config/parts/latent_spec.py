"""Multi-head latent attention (MLA): one row per token in place of keys and values."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def row(self) -> int:
        """Features that are stored for a token and a layer."""
        return self.rank + self.rotated

    @property
    def query_dim(self) -> int:
        """Features of a head's queries before the product with its key matrix is absorbed."""
        return self.unrotated + self.rotated

    def weights(self, hidden: int, heads: int) -> int:
        """Weights of a layer's projections."""
        queries = heads * self.query_dim
        projections = hidden * queries if self.query_rank is None else self.query_rank * (hidden + queries)
        expansion = self.rank * heads * (self.unrotated + self.value_dim)
        return projections + hidden * self.row + expansion + heads * self.value_dim * hidden
