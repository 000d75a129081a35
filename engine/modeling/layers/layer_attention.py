"""How one layer attends: what attention backends need to know of a model beyond the shape of its KV."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAttention:
    """Softmax of `soft_cap * tanh(scale * q k / soft_cap)` over the last `window` tokens and a sink."""

    scale: float
    """Factor of the products of queries and keys."""
    window: int | None = None
    """How many tokens a token attends to, itself included; None: all."""
    causal: bool = True
    """False: tokens attend to those after them too, as many as the window allows; prompts come whole."""
    soft_cap: float | None = None
    """None: scores are not capped."""
    sinks: Tensor | None = None
    """[heads] float32, of this rank: scores that take part in the softmax and have no value."""
    source: int | None = None
    """If given, it has no keys and values: it reads those of this layer, counted among those with
    attention."""
    latent_rank: int | None = None
    """If given, a token has one row, of which all features are the key and the first `latent_rank` the value.
    Its first half is stored in place of a key, its second in place of a value."""
    chosen: int | None = None
    """If given, a token attends to as many tokens at most, which an indexer chooses: see `SparseAttention`.
    The key of the indexer is stored after the row."""
