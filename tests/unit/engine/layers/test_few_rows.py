"""Products of a few rows with 8-bit weights by the interpreted GPU kernel, against those of the values."""

from __future__ import annotations

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("rows", [1, 3, 12])
@pytest.mark.parametrize(("depth", "features"), [(512, 64), (640, 32), (8448, 32)])
@pytest.mark.parametrize("gated", [False, True])
def test_a_few_rows_equal_their_values(
    gated: bool, depth: int, features: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer columns in the last step than in others, too."""
    from engine.kernels.matmul import few_rows

    monkeypatch.setattr(few_rows, "supports_pdl", lambda device: False)
    torch.manual_seed(0)
    weight = (torch.randn(features * (1 + gated), depth) * 50).to(torch.float8_e4m3fn)
    x = (torch.randn(rows, depth) * 50).to(torch.float8_e4m3fn)
    scale, weight_scale = torch.rand(rows) * 1e-2, torch.rand(len(weight)) * 1e-2
    bias = None if gated else torch.randn(features)

    product = few_rows.fp8_few_rows(x, scale, weight, weight_scale, bias, torch.float32, gated=gated)

    expected = (x.float() * scale.unsqueeze(1)) @ (weight.float() * weight_scale.unsqueeze(1)).t()
    if gated:
        gate, up = expected.chunk(2, dim=1)
        expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(product, expected if bias is None else expected + bias, rtol=1e-4, atol=1e-3)
