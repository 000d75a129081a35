"""What a model's layers attend to, and how scores are formed."""

from __future__ import annotations

from dataclasses import dataclass

from common.kv_groups import KVHeads


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherHeads:
    """Layers whose heads have another size than those of the others: Gemma 4's without a window."""

    layers: frozenset[int]
    heads: KVHeads
    """On a rank, those that it holds."""
    values_are_keys: bool
    """Whether values are keys, before these are normalised and rotated, instead of a projection."""
    widths: tuple[int, int]
    """Features of the keys of an ordinary layer and of one of these in the whole model, by which layers are
    grouped: the same on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of token i with window w covers tokens i - w + 1 to i of its request; if it is bidirectional,
    to i + w - 1."""

    name: str = "self_attn"
    """Name of its module within a layer of a checkpoint."""
    windows: tuple[int | None, ...] = ()
    """For each layer, how many tokens a token attends to, itself included; None: all. Empty: no layer has a
    window."""
    scale: float | None = None
    """Factor of the products of queries and keys; None: head_dim ** -0.5."""
    soft_cap: float | None = None
    """Scaled scores s become soft_cap * tanh(s / soft_cap)."""
    sinks: bool = False
    """Whether each query head has a learned score that takes part in the softmax and has no value."""

    other_heads: OtherHeads | None = None
    """None: the heads of all layers have the same size."""
    reads: tuple[int | None, ...] = ()
    """For each layer, the earlier one whose keys and values it reads; None: its own. Empty: all have some."""
    bidirectional: bool = False
    """Whether a token attends to those after it too: an encoder, whose prompts are computed whole."""

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def source(self, layer: int) -> int | None:
        return self.reads[layer] if self.reads else None

    def projected(self, layer: int) -> str:
        """Which of q, k and v a layer projects."""
        other = self.other_heads
        if self.source(layer) is not None:
            return "q"
        return "qk" if other is not None and layer in other.layers and other.values_are_keys else "qkv"
