"""The experts of a mixture-of-experts model, and how tokens are routed to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.model_config.errors import UnsupportedModel


class Scoring(Enum):
    """How a router's logits become the weights of experts."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """Each token is computed by the `per_token` experts with the best scores, and by the shared expert."""

    count: int
    per_token: int
    intermediate_size: int
    """Features of one expert."""
    scoring: Scoring = Scoring.SOFTMAX
    normalized: bool = True
    """Whether the weights of a token's experts are scaled to a sum of 1."""
    scale: float = 1.0
    """Factor of the weights, after normalisation."""
    bias: bool = False
    """Whether the router and the matrices of the experts have biases."""
    score_bias: bool = False
    """Whether experts are chosen by their scores plus a bias, which does not affect their weights."""
    groups: int = 1
    """Experts are chosen from the best `groups_per_token` groups."""
    groups_per_token: int = 1
    scores_per_group: int = 2
    """How many of its best scores are summed to compare a group with others."""
    shared_size: int = 0
    """Features of the shared expert, which computes every token; 0: there is none."""
    shared_gate: bool = False
    """Whether the shared expert's output is multiplied by a gate of its own."""
    latent: int | None = None
    """Features that the routed experts compute with, to which the hidden state is projected and from which
    their sum is projected back; None: those of the hidden state."""
    beside_mlp: bool = False
    """Whether the shared expert is a plain MLP with norms of its own, and the router normalises and scales
    its inputs, and scales the weights of each expert (Gemma 4)."""
    dense_layers: frozenset[int] = frozenset()
    """Layers that have a plain MLP instead."""
    parallel: int = 1
    """Groups of ranks. Each holds experts of its own, and each of its ranks a part of these."""
    group: int = 0
    """Expert group of a rank."""

    def __post_init__(self) -> None:
        if not 0 < self.per_token <= self.count:
            raise UnsupportedModel(
                f"{self.per_token} experts per token of {self.count}: there are not as many"
            )
        if self.count % self.groups or self.count // self.groups * self.groups_per_token < self.per_token:
            raise UnsupportedModel(
                f"{self.per_token} of {self.count} experts cannot be chosen from {self.groups_per_token} of"
                f" {self.groups} groups"
            )
        if self.parallel > self.count:
            raise UnsupportedModel(f"{self.parallel} groups of ranks cannot share {self.count} experts")

    @property
    def held(self) -> range:
        """The experts of the rank's group, as many as of any other or one more."""
        first, last = (group * self.count // self.parallel for group in (self.group, self.group + 1))
        return range(first, last)

    def features(self, hidden: int) -> int:
        """Features of all experts of a layer; narrower experts count by their share of `hidden` features."""
        return self.count * self._features_of_one(hidden) + self.shared_size

    def active_features(self, hidden: int) -> int:
        """Features of the experts that compute one token."""
        return self.per_token * self._features_of_one(hidden) + self.shared_size

    def _features_of_one(self, hidden: int) -> int:
        return self.intermediate_size * (self.latent or hidden) // hidden

    def reached(self, tokens: float) -> float:
        """Experts that compute at least one of `tokens`, on average, if all are equally likely."""
        return self.count * (1.0 - float((1.0 - self.per_token / self.count) ** tokens))
