"""Routing by the kernels for GPUs, interpreted, against routing in plain torch."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest
import torch

from engine.model_config.parts.expert_spec import ExpertSpec
from engine.modeling.layers.routing import route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("tokens", [3, 100, 2100])
def test_tokens_reach_the_experts_that_plain_torch_chooses(
    tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest number of tokens needs a separate launch that sums the counts of blocks."""
    from engine.kernels.experts import routing as kernels

    monkeypatch.setattr(kernels, "supports_pdl", lambda device: False)
    spec = ExpertSpec(count=6, per_token=2, intermediate_size=8, normalized=True)
    logits = torch.randn(tokens, 6)

    totals = torch.full((6,), 7)
    routing = kernels.route_tokens(
        logits,
        None,
        None,
        torch.tensor([tokens], dtype=torch.int32),
        totals,
        per_token=2,
        sigmoid=False,
        normalized=True,
        scale=1.0,
    )

    expected = route(logits, None, spec)
    torch.testing.assert_close(routing.weights, expected.weights)
    assert torch.equal(routing.starts.long(), expected.starts)
    assert torch.equal(totals, 7 + expected.starts.diff())
    assert torch.equal(routing.order[routing.places.flatten().long()], torch.arange(2 * tokens).int())
    for begin, end in pairwise(expected.starts.tolist()):  # within an expert, any order
        assert torch.equal(routing.order[begin:end].sort().values.long(), expected.order[begin:end])
