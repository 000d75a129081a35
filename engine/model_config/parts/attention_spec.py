"""What a model's layers attend to, and how scores are formed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Attention of token i with window w covers tokens i - w + 1 to i of its request."""

    windows: tuple[int | None, ...] = ()
    """For each layer, how many tokens a token attends to, itself included; None: all. Empty: no layer has a
    window."""
    scale: float | None = None
    """Factor of the products of queries and keys; None: head_dim ** -0.5."""
    soft_cap: float | None = None
    """Scaled scores s become soft_cap * tanh(s / soft_cap)."""
    sinks: bool = False
    """Whether each query head has a learned score that takes part in the softmax and has no value."""

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None
