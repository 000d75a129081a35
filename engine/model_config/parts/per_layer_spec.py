"""Embeddings of tokens that enter every layer, beside the one that enters the first (Gemma 3n, Gemma 4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PerLayerSpec:
    """A gate of each layer's hidden state chooses among the features, which are projected and added to it."""

    features: int
    """For each layer."""
    vocab_size: int
    of_images: int = 0
    """Token whose embeddings rows of images get."""

    @property
    def embedding(self) -> int:
        """Weights of one layer's embeddings."""
        return self.vocab_size * self.features
