"""Kernels of experts against the same thing said in torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from engine.model_config.parts.expert_spec import ExpertSpec, Scoring
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.routing import Routes, route

CUDA = torch.device("cuda")

SPECS = [
    ExpertSpec(count=8, per_token=2, intermediate_size=8),
    ExpertSpec(count=128, per_token=8, intermediate_size=8),
    ExpertSpec(count=60, per_token=4, intermediate_size=8, normalized=False),
    ExpertSpec(
        count=64, per_token=6, intermediate_size=8, scoring=Scoring.SIGMOID, score_bias=True, scale=2.5
    ),
    ExpertSpec(
        count=64,
        per_token=6,
        intermediate_size=8,
        scoring=Scoring.SIGMOID,
        score_bias=True,
        groups=8,
        groups_per_token=4,
    ),
]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def routed(logits: torch.Tensor, bias: torch.Tensor | None, spec: ExpertSpec, live: int) -> Routes:
    from engine.modeling.layers.ops.flashinfer_ops import FlashInferOps

    totals = torch.zeros(spec.count, dtype=torch.int64, device=CUDA)
    rows = torch.tensor([live], dtype=torch.int32, device=CUDA)
    routes = FlashInferOps().route(logits, bias, spec, rows, totals)
    assert torch.equal(totals, routes.starts.diff())
    return routes


def experts(routes: Routes) -> torch.Tensor:
    ends = routes.starts[1:].long().contiguous()
    return torch.searchsorted(ends, routes.places.long().contiguous(), right=True)


@pytest.mark.parametrize("tokens", [1, 16, 100, 1024, 1025, 5000])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.per_token} of {spec.count}")
def test_tokens_are_routed_as_in_torch_and_padding_not_at_all(spec: ExpertSpec, tokens: int) -> None:
    live = tokens - tokens // 5
    logits = torch.randn(tokens, spec.count, device=CUDA)
    logits[::3] = (logits[::3] * 2).round() / 2  # ties
    bias = torch.randn(spec.count, device=CUDA) if spec.score_bias else None

    routes = routed(logits, bias, spec, live)

    # Scores of both differ by a rounding, which may swap two experts that are almost tied.
    expected = route(logits[:live], bias, spec)
    same = (experts(routes)[:live] == experts(expected)).all(dim=1)
    assert same.float().mean() > 0.999
    torch.testing.assert_close(routes.weights[:live][same], expected.weights[same], atol=1e-5, rtol=1e-4)
    assert (routes.places[live:] == -1).all()
    pairs = torch.arange(live * spec.per_token, device=CUDA, dtype=torch.int32)
    assert torch.equal(routes.order[routes.places[:live].flatten().long()], pairs)
    assert routes.starts[-1] == live * spec.per_token


@pytest.mark.parametrize("tokens", [1, 7, 33, 300, 3000])
@pytest.mark.parametrize(("depth", "features"), [(256, 512), (2048, 1536), (768, 2048), (100, 72)])
def test_rows_are_multiplied_with_the_matrix_of_their_expert(tokens: int, depth: int, features: int) -> None:
    from engine.modeling.layers.linear.grouped_gpu import GroupedWeight

    spec = SPECS[0]
    routes = routed(torch.randn(tokens, spec.count, device=CUDA), None, spec, tokens)
    stack = torch.randn(spec.count, features, depth, device=CUDA, dtype=torch.bfloat16)
    x = torch.randn(tokens, depth, device=CUDA, dtype=torch.bfloat16)

    outputs = GroupedWeight(stack)(x, routes, True)
    again = GroupedWeight(stack)(x[routes.order.long() // spec.per_token], routes, False)

    expected = torch.empty_like(outputs)
    starts = routes.starts.tolist()
    for expert, (start, end) in enumerate(pairwise(starts)):
        rows = routes.order[start:end].long() // spec.per_token
        expected[start:end] = (x[rows].float() @ stack[expert].float().t()).bfloat16()
    torch.testing.assert_close(outputs, expected, atol=0.05 * depth**0.5 / 4, rtol=1e-2)
    assert torch.equal(outputs, again)


@pytest.mark.parametrize("tokens", [1, 17, 600])
def test_a_packed_router_scores_16_bit_weights_as_32_bit_ones(tokens: int) -> None:
    from engine.modeling.layers.experts import ExpertRouter, LiveRows
    from engine.modeling.layers.ops.flashinfer_ops import FlashInferOps

    torch.set_default_device(CUDA)
    torch.set_default_dtype(torch.bfloat16)
    try:
        router = ExpertRouter(2048, SPECS[1], FlashInferOps(), LiveRows())
    finally:
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float32)
    router.weight.data.normal_(0, 0.02)
    router.weight.data.copy_(router.weight.bfloat16())
    x = torch.randn(tokens, 2048, device=CUDA, dtype=torch.bfloat16)
    plain = router._logits(x)
    router.pack()
    assert router._rounded is not None
    torch.testing.assert_close(router._logits(x), plain, atol=1e-4, rtol=1e-5)


def test_a_captured_layer_follows_the_number_of_live_rows() -> None:
    from engine.modeling.layers.experts import ExpertMLP, ExpertRouter, ExpertStack, LiveRows
    from engine.modeling.layers.linear.linear_layer import PLAIN
    from engine.modeling.layers.ops.flashinfer_ops import FlashInferOps
    from engine.parallel.communicator import SINGLE_RANK

    torch.set_default_device(CUDA)
    torch.set_default_dtype(torch.bfloat16)
    try:
        ops, live, spec = FlashInferOps(), LiveRows(), SPECS[1]
        router = ExpertRouter(256, spec, ops, live)
        stacks = ExpertStack(spec, 256, 256, PLAIN), ExpertStack(spec, 128, 256, PLAIN)
        layer = ExpertMLP(router, *stacks, None, None, None, Activation.SILU, ops, SINGLE_RANK)
    finally:
        torch.set_default_device("cpu")
        torch.set_default_dtype(torch.float32)
    for parameter in layer.parameters():
        parameter.data.normal_(0, 0.1)
    router.pack()
    for stack in stacks:
        stack.pack()
    x = torch.randn(16, 256, device=CUDA, dtype=torch.bfloat16)
    live.expect(16)
    whole = layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    for rows in (16, 5, 11):
        live.expect(rows)
        before = router.counts.sum()
        graph.replay()
        assert router.counts.sum() - before == rows * spec.per_token
        torch.testing.assert_close(out[:rows], whole[:rows], atol=2e-2, rtol=2e-2)
        assert not out[rows:].any()
