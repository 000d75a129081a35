"""A packed weight's memory, read as plain blocks, is the weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from engine.layers.linear import linear
from engine.layers.linear_layer import Linear
from engine.layers.onednn import packed
from engine.layers.row_blocks import blocks_of

onednn = pytest.mark.skipif(
    not packed(torch.ones(64, 64)).is_mkldnn, reason="oneDNN packs nothing on this machine"
)


@onednn
@given(inner=st.integers(1, 300), outer=st.integers(1, 300), biased=st.booleans(), seed=st.integers(0, 1000))
def test_blocks_multiply_a_row_like_the_weight_or_there_are_none(
    inner: int, outer: int, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, inner, generator=generator)
    weight = torch.randn(outer, inner, generator=generator)
    bias = torch.randn(outer, generator=generator) if biased else None
    whole = packed(weight)

    blocks = blocks_of(whole, weight)

    result = linear(x, whole, bias, blocks)
    torch.testing.assert_close(result, functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4)
    if blocks is not None:
        torch.testing.assert_close(blocks.transpose(1, 2).reshape(outer, inner), weight, atol=0, rtol=0)


@pytest.fixture
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shape was compared before."""
    monkeypatch.setattr("engine.layers.row_blocks._widths", {})


@onednn
def test_memory_that_holds_something_else_is_not_taken_for_blocks(nothing_known: None) -> None:
    weight = torch.randn(128, 96)
    other = weight.clone()
    other[-1, -1] += 1

    assert blocks_of(packed(weight), other) is None


@onednn
def test_of_weights_of_one_shape_the_first_alone_is_compared(
    nothing_known: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = torch.randn(128, 96), torch.randn(128, 96)
    assert blocks_of(packed(first), first) is not None
    monkeypatch.setattr("engine.layers.row_blocks._width", None)

    whole = packed(second)
    blocks = blocks_of(whole, second)

    assert blocks is not None
    assert torch.equal(blocks.transpose(1, 2).reshape(128, 96), second)


def test_a_weight_that_is_not_packed_has_no_blocks() -> None:
    weight = torch.randn(64, 64)

    assert blocks_of(weight, weight) is None


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_the_same_before_and_after_packing(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = Linear(96, 128, bias=bias)
    torch.nn.init.normal_(layer.weight)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(rows, 200)[:, 50:146]
    plain = layer(x)

    layer.pack()

    torch.testing.assert_close(layer(x), plain, atol=1e-4, rtol=1e-4)
