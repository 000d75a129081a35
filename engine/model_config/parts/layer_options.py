"""What the layers of decoder-only transformers differ in."""

from __future__ import annotations

from enum import Enum


class QKNorm(Enum):
    """What queries and keys are normalised over, before rotation."""

    HEAD = "head"
    """Each head by itself (Qwen3)."""
    ALL_HEADS = "all heads"
    """All query heads together, and all key heads together (OLMoE)."""


class Activation(Enum):
    """The function of a gated MLP's two products."""

    SILU = "silu(gate) * up"
    GELU = "gelu(gate) * up"
    """In the tanh approximation (Gemma)."""
    CLAMPED = "silu(gate) * (up + 1), clamped"
    """`gate` at most 7, `up` between -7 and 7, and the sigmoid of 1.702 * gate (gpt-oss)."""


class Norms(Enum):
    """What a layer normalises: the inputs of attention and MLP, or their outputs, which are then added up."""

    BEFORE = "before"
    AFTER = "after"
    """Olmo 2"""
    BOTH = "both"
    """Gemma 2"""
