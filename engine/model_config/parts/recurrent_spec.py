"""Layers with a recurrent state in place of keys and values of every token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.model_config.errors import UnsupportedModel


class Rule(Enum):
    """How a token changes the state of its head."""

    GATED_DELTA = "gated delta net"
    """Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024)."""
    KIMI_DELTA = "Kimi delta attention"
    """Moonshot AI, "Kimi Linear" (2025): the same with a decay for each feature of a key."""
    STATE_SPACE = "Mamba2"
    """Dao and Gu, "Transformers are SSMs" (2024): B are keys, C queries, the inputs values; dt scales these.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentSpec:
    """Each key head serves `value_heads / key_heads` consecutive value heads."""

    layers: frozenset[int]
    """Layers with a state."""
    key_heads: int
    """There are as many query heads."""
    value_heads: int
    key_dim: int
    """Features of a key head."""
    value_dim: int
    kernel: int
    """Tokens that the causal convolution before the rule sees."""
    rule: Rule = Rule.GATED_DELTA
    kernel_bias: bool = False
    """Whether the convolution has a bias."""
    smallest_step: float = 0.0
    """Smallest dt of a Mamba2 layer."""
    interleaved: bool = False
    """Whether checkpoints store q, k, v and z of each key head side by side (Qwen3-Next), and b and a too."""

    def __post_init__(self) -> None:
        if self.value_heads % self.key_heads:
            raise UnsupportedModel(
                f"{self.value_heads} value heads and {self.key_heads} key heads of a {self.rule.value}:"
                " value heads must divide evenly among the key heads"
            )

    @property
    def key_size(self) -> int:
        """Features of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Features of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def mixed_size(self) -> int:
        """Features of queries, keys and values, which the convolution mixes along the tokens."""
        return 2 * self.key_size + self.value_size

    @property
    def matrix_values(self) -> int:
        """Values in the state of the rule, of one layer: a matrix for each value head."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def window_values(self) -> int:
        """Values in the state of the convolution, of one layer: its last inputs."""
        return self.mixed_size * (self.kernel - 1)

    def state_bytes(self, value_bytes: int) -> int:
        """State of one request, all layers together: matrices in float32, windows in the dtype of
        activations.
        """
        return len(self.layers) * (4 * self.matrix_values + value_bytes * self.window_values)

    def state_rows(self, value_bytes: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Rows of a state and how often they repeat, in the order of `engine.kv.cache.state_pool`.

        A row is the matrices of a layer, where a key head has those of its value heads, or the queries, the
        keys or the values in the window of a layer. Each is given by the bytes of a key head.
        """
        values = self.value_heads // self.key_heads * self.value_dim
        key, value = (value_bytes * size * (self.kernel - 1) for size in (self.key_dim, values))
        return (len(self.layers), (4 * values * self.key_dim,)), (len(self.layers), (key, key, value))

    @property
    def weights(self) -> int:
        """Weights of one layer's matrices for each feature of the model."""
        sizes = self.mixed_size + self.value_size
        match self.rule:
            case Rule.GATED_DELTA:
                return sizes + self.value_size + 2 * self.value_heads
            case Rule.KIMI_DELTA:  # the matrices from the low rank of gates and decays count nowhere
                return sizes + 2 * self.key_dim + self.value_heads
            case Rule.STATE_SPACE:
                return sizes + self.value_size + self.value_heads
