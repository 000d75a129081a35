"""Which experts compute which tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.model_config.parts.expert_spec import ExpertSpec, Scoring


@dataclass(frozen=True, slots=True)
class Routes:
    """The pairs of a token and one of its experts, ordered by expert.

    T tokens, k experts for each, P = T * k pairs, E experts. Pairs of rows that pad a CUDA graph belong to no
    expert, nor do those of experts that other ranks hold.
    """

    weights: Tensor
    """[T, k] float32: the share of each pair in its token's output."""
    order: Tensor
    """[P]: the pairs t * k + j in order of their experts."""
    starts: Tensor
    """[E + 1]: pairs starts[e] to starts[e + 1] of `order` belong to expert e."""
    places: Tensor
    """[T, k]: where `order` has each pair; negative for those that belong to no expert."""

    @property
    def per_token(self) -> int:
        return self.weights.shape[1]

    @property
    def experts(self) -> Tensor:
        """[P]: the expert of each pair of `order`; any of them for padding."""
        pairs = torch.arange(len(self.order), dtype=self.starts.dtype, device=self.starts.device)
        experts = torch.searchsorted(self.starts[1:].contiguous(), pairs, right=True)
        return experts.clamp_(max=len(self.starts) - 2)

    @property
    def chosen(self) -> Tensor:
        """[T, k]: the experts of each token, in the order of choice; any of them for padding."""
        return self.experts[self.places.clamp(min=0)]

    def only(self, experts: range) -> Routes:
        """The pairs of these experts, which are E from now on; their places stay."""
        starts = self.starts[experts.start : experts.stop + 1]
        among = (self.places >= starts[0]) & (self.places < starts[-1])
        return replace(self, starts=starts, places=self.places.where(among, -1))


def route(
    logits: Tensor,
    bias: Tensor | None,
    spec: ExpertSpec,
    sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid,
) -> Routes:
    """The routes of every row of `logits` [T, E] float32. Of equal scores the first expert's wins.

    `bias` [E] float32 is added to the scores where experts are chosen.
    """
    scores, choice = scores_of(logits, bias, spec, sigmoid)
    chosen = choice.sort(dim=1, descending=True, stable=True).indices[:, : spec.per_token]
    weights = scores.gather(1, chosen)
    if spec.normalized:
        weights = weights / weights.sum(dim=1, keepdim=True)
    of_experts, order = chosen.flatten().sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    experts = torch.arange(spec.count + 1, device=order.device)
    return Routes(
        weights=weights * spec.scale,
        order=order,
        starts=torch.searchsorted(of_experts, experts),
        places=places.view(chosen.shape),
    )


def scores_of(
    logits: Tensor,
    bias: Tensor | None,
    spec: ExpertSpec,
    sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid,
) -> tuple[Tensor, Tensor]:
    """For each expert its weight before normalisation, and the score by which experts are chosen: [T, E]."""
    match spec.scoring:
        case Scoring.SOFTMAX:
            scores = logits.softmax(dim=1)
        case Scoring.SIGMOID:
            scores = sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if spec.groups > 1:
        groups = choice.view(len(choice), spec.groups, -1)
        best = groups.topk(spec.scores_per_group, dim=2).values.sum(dim=2)
        ranks = best.sort(dim=1, descending=True, stable=True).indices
        left_out = ranks[:, spec.groups_per_token :]
        closed = torch.zeros_like(best, dtype=torch.bool).scatter_(1, left_out, True)
        choice = groups.masked_fill(closed.unsqueeze(2), -torch.inf).flatten(1)
    return scores, choice
