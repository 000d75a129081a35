"""What the layers of transformers differ in, and what is after the last."""

from __future__ import annotations

import math
from enum import Enum, StrEnum


class QKNorm(Enum):
    """What queries and keys are normalised over, before rotation."""

    HEAD = "head"
    """Each head by itself (Qwen3)."""
    ALL_HEADS = "all heads"
    """All query heads together, and all key heads together (OLMoE)."""


class Activation(Enum):
    """The function of a gated MLP's two products, or of one product of an MLP without a gate."""

    SILU = "silu(gate) * up"
    GELU = "gelu(gate) * up"
    """In the tanh approximation (Gemma)."""
    CLAMPED = "silu(gate) * (up + 1), clamped"
    """`gate` at most 7, `up` between -7 and 7, and the sigmoid of 1.702 * gate (gpt-oss)."""
    SQUARED_RELU = "relu(up) ** 2"
    """Without a gate (Nemotron-H)."""


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
    WEIGHTED_MEAN = "weightedmean"
    """The mean weighted by positions, from 1."""
    MEAN_SQRT_LEN = "mean_sqrt_len"
    """The sum divided by the square root of the length."""

    @property
    def sums(self) -> bool:
        """Whether it adds up all rows."""
        return self not in (Pooling.LAST, Pooling.CLS)

    def divisor(self, length: int) -> float:
        """What the sum over a prompt is divided by."""
        match self:
            case Pooling.MEAN:
                return float(length)
            case Pooling.WEIGHTED_MEAN:
                return length * (length + 1) / 2
            case Pooling.MEAN_SQRT_LEN:
                return math.sqrt(length)
        return 1.0


class Norms(Enum):
    """What a layer normalises: the inputs of attention and MLP, or their outputs, which are then added up."""

    BEFORE = "before"
    AFTER = "after"
    """Olmo 2"""
    BOTH = "both"
    """Gemma 2"""
