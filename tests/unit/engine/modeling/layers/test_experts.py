"""Routing, and the layer that is routed to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.model_config.errors import UnsupportedModel
from engine.model_config.parts.expert_spec import ExpertSpec, Scoring
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.routing import Routes, route


def spec(**changed: object) -> ExpertSpec:
    return ExpertSpec(**{"count": 6, "per_token": 2, "intermediate_size": 8, **changed})  # type: ignore[arg-type]


def experts(routes: Routes) -> Tensor:
    """[T, k]: the expert of each pair."""
    return torch.searchsorted(routes.starts[1:].contiguous(), routes.places, right=True)


def test_pairs_are_ordered_by_expert_and_every_pair_has_one_place() -> None:
    logits = torch.randn(17, 6, generator=torch.Generator().manual_seed(0))

    routes = route(logits, None, spec())

    assert torch.equal(experts(routes), logits.topk(2).indices)
    assert torch.equal(routes.order[routes.places.flatten()], torch.arange(34))
    assert routes.starts[0] == 0
    assert routes.starts[-1] == 34
    torch.testing.assert_close(routes.weights.sum(1), torch.ones(17))


def test_of_equal_scores_the_first_experts_win() -> None:
    assert experts(route(torch.zeros(3, 6), None, spec())).tolist() == [[0, 1]] * 3


def test_a_bias_changes_the_choice_and_not_the_weights() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 9.0])
    sigmoid = spec(scoring=Scoring.SIGMOID, normalized=False, score_bias=True, scale=2.0)

    routes = route(logits, bias, sigmoid)

    assert experts(routes).tolist() == [[5, 0]]
    torch.testing.assert_close(routes.weights, 2 * logits[:, [5, 0]].sigmoid())


def test_only_experts_of_the_best_groups_are_chosen() -> None:
    # Expert 0 has the best score, but the two best of its group sum to less than those of the others.
    logits = torch.tensor([[5.0, -9.0, 2.0, 2.0, 1.0, 1.5]])
    grouped = spec(scoring=Scoring.SIGMOID, groups=3, groups_per_token=1)

    assert experts(route(logits, None, grouped)).tolist() == [[2, 3]]


def test_a_token_is_routed_alone_as_it_is_in_any_batch() -> None:
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    together = route(logits, None, spec())
    for token in range(40):
        alone = route(logits[token : token + 1], None, spec())
        assert torch.equal(experts(alone)[0], experts(together)[token])
        assert torch.equal(alone.weights[0], together.weights[token])


def test_outputs_are_summed_by_their_weights() -> None:
    routes = route(torch.randn(9, 6, generator=torch.Generator().manual_seed(2)), None, spec())
    of_pairs = torch.arange(18.0).unsqueeze(1) * torch.ones(5)

    summed = Ops().weighted_sum(of_pairs[routes.order], routes)

    expected = (of_pairs.view(9, 2, 5) * routes.weights.unsqueeze(2)).sum(1)
    torch.testing.assert_close(summed, expected)


@pytest.mark.parametrize("changed", [{"per_token": 7}, {"groups": 4}, {"groups": 6, "groups_per_token": 1}])
def test_impossible_routing_is_refused(changed: dict[str, int]) -> None:
    with pytest.raises(UnsupportedModel):
        spec(**changed)


def test_experts_reached_by_a_batch() -> None:
    one, many = spec().reached(1), spec().reached(1000)
    assert one == pytest.approx(2)
    assert many == pytest.approx(6)


def test_a_rank_adds_up_the_outputs_of_its_own_experts() -> None:
    """Rows of other experts are undefined."""
    routes = route(torch.randn(9, 6, generator=torch.Generator().manual_seed(2)), None, spec())
    outputs = torch.randn(18, 4)
    whole = Ops().weighted_sum(outputs, routes)

    parts = []
    for held in (range(2), range(2, 5), range(5, 6)):
        mine = routes.only(held)
        assert mine.starts.tolist() == routes.starts[held.start : held.stop + 1].tolist()
        garbage = torch.full_like(outputs, torch.nan)
        rows = slice(int(mine.starts[0]), int(mine.starts[-1]))
        garbage[rows] = outputs[rows]
        parts.append(Ops().weighted_sum(garbage, mine))

    torch.testing.assert_close(sum(parts), whole)
