"""Packed weights multiply like plain ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from engine.modeling.layers.linear.linear_layer import linear
from engine.modeling.layers.linear.onednn import packed


@given(
    rows=st.integers(0, 70),
    inner=st.integers(1, 80),
    outer=st.integers(1, 80),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_packed_product_equals_the_plain_one_for_any_shape(
    rows: int, inner: int, outer: int, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator)
    weight = torch.randn(outer, inner, generator=generator)
    bias = torch.randn(outer, generator=generator) if biased else None

    result = linear(x, packed(weight), bias)

    torch.testing.assert_close(result, functional.linear(x, weight, bias), atol=1e-4, rtol=1e-4)


def test_packing_loses_nothing() -> None:
    weight = torch.randn(70, 33)

    assert torch.equal(packed(weight).to_dense(), weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_dtype_that_onednn_does_not_multiply_is_left_plain(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 8, dtype=dtype)

    assert packed(weight) is weight


def test_strided_activations_are_multiplied_as_they_lie() -> None:
    weight = torch.randn(16, 8)
    x = torch.randn(5, 20)[:, 3:11]

    torch.testing.assert_close(linear(x, packed(weight)), functional.linear(x, weight), atol=1e-5, rtol=1e-5)
