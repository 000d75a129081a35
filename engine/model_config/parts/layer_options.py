"""What the layers of transformers differ in, and what is after the last."""

from __future__ import annotations

from enum import Enum, StrEnum


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


class Head(Enum):
    """What the final hidden states are multiplied with."""

    VOCABULARY = "vocabulary"
    """Scores of the next token."""
    LABELS = "labels"
    """Scores of a classifier's labels, or a reward."""
    NONE = "none"


class Pooling(StrEnum):
    """How the final hidden states of a prompt become one vector."""

    LAST = "last"
    CLS = "cls"
    """The first."""
    MEAN = "mean"


class Norms(Enum):
    """What a layer normalises: the inputs of attention and MLP, or their outputs, which are then added up."""

    BEFORE = "before"
    AFTER = "after"
    """Olmo 2"""
    BOTH = "both"
    """Gemma 2"""
