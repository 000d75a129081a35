"""Products of a few rows with 8-bit weights by the interpreted GPU kernel, against those of the values."""

from __future__ import annotations

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("rows", [1, 3, 12])
@pytest.mark.parametrize(("depth", "features"), [(512, 192), (640, 32), (8448, 32)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_few_rows_equal_their_values(
    blocks: bool, gated: bool, depth: int, features: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer columns in the last step than in others, too."""
    from engine.kernels.matmul import few_rows

    monkeypatch.setattr(few_rows, "supports_pdl", lambda device: False)
    torch.manual_seed(0)
    weight = (torch.randn(features * (1 + gated), depth) * 50).to(torch.float8_e4m3fn)
    x = (torch.randn(rows, depth) * 50).to(torch.float8_e4m3fn)
    scale, weight_scale, of_x, of_weight = scales(x, weight, blocks)
    bias = None if gated else torch.randn(features)

    product = few_rows.fp8_few_rows(x, scale, weight, weight_scale, bias, torch.float32, gated=gated)

    expected = (x.float() * of_x) @ (weight.float() * of_weight).t()
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(product, expected if bias is None else expected + bias, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("depth", "features"), [(4096, 16), (2048, 192), (3072, 16), (10_240, 8), (5120, 8)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_vector_of_8_bit_values_equals_their_product(
    blocks: bool, gated: bool, depth: int, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest values too: their sums exceed the range of 16 bits."""
    from engine.kernels.matmul import matvec

    monkeypatch.setattr(matvec, "supports_pdl", lambda device: False)
    torch.manual_seed(0)
    weight = torch.randn(features * (1 + gated), depth) * 50
    x = torch.randn(1, depth) * 50
    weight[:4], x[0, : depth // 2] = 448.0, 448.0
    weight, x = weight.to(torch.float8_e4m3fn), x.to(torch.float8_e4m3fn)
    scale, weight_scale, of_x, of_weight = scales(x, weight, blocks)

    if gated:
        product = matvec.gated_matvec(x, weight, (scale / 100, weight_scale / 10), torch.float32)
    else:
        product = matvec.matvec(x, weight, None, (scale / 100, weight_scale / 10), torch.float32)

    expected = (x.float() * of_x / 100) @ (weight.float() * of_weight / 10).t()
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(product, expected, rtol=1e-3, atol=1e-3)


def scales(x: torch.Tensor, weight: torch.Tensor, blocks: bool) -> tuple[torch.Tensor, ...]:
    """Scales of rows or blocks: of `x` and of `weight`, and the same for each value."""
    if not blocks:
        scale, weight_scale = torch.rand(len(x)) * 1e-2, torch.rand(len(weight)) * 1e-2
        return scale, weight_scale, scale.unsqueeze(1), weight_scale.unsqueeze(1)
    groups = x.shape[1] // 128
    scale, weight_scale = torch.rand(len(x), groups) * 1e-2, torch.rand(-(-len(weight) // 128), groups) * 1e-2
    of_weight = weight_scale.repeat_interleave(128, 0)[: len(weight)].repeat_interleave(128, 1)
    return scale, weight_scale, scale.repeat_interleave(128, 1), of_weight
