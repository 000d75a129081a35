"""Products with 4-bit weights by the kernel for GPUs, interpreted, against those of the values."""

from __future__ import annotations

import os

import pytest
import torch

from engine.model_config.quantization import Nvfp4Names

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize(("depth", "features"), [(192, 40), (512, 32)])
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_experts_of_4_bit_floats_equal_those_of_the_values(
    kind: str, depth: int, features: int, tokens: int
) -> None:
    """Groups of the last step may be fewer than the kernel takes at once."""
    from engine.kernels.matmul.fp4 import fp4_matmul
    from engine.modeling.layers.formats.fp4 import Mxfp4, Nvfp4
    from engine.modeling.layers.formats.fp4_gpu import packed

    torch.manual_seed(0)
    experts = 3
    stored = {"blocks": torch.randint(0, 256, (experts, features, depth // 2), dtype=torch.uint8)}
    codes = torch.stack((stored["blocks"] & 15, stored["blocks"] >> 4), dim=-1).flatten(-2)
    if kind == "mxfp4":
        stored["scales"] = torch.randint(110, 130, (experts, features, depth // 32), dtype=torch.uint8)
        weights, values = packed(codes, stored["scales"]), Mxfp4(torch.float32).dense(stored)
    else:
        scales = torch.rand(experts, features, depth // 16) * torch.tensor([448.0, 1.0, 0.01]).view(3, 1, 1)
        stored |= {"scales": scales.to(torch.float8_e4m3fn), "factor": torch.rand(experts, features) * 0.01}
        weights = packed(codes, stored["scales"], stored["factor"])
        values = Nvfp4(torch.float32, Nvfp4Names.MODELOPT).dense(stored)
    chosen = torch.randint(0, experts, (tokens,)).sort().values
    starts = torch.searchsorted(chosen, torch.arange(experts + 1)).int()
    order = torch.randperm(tokens).int()
    x = torch.randn(tokens, depth)

    product = fp4_matmul(x, weights, starts=starts, order=order)

    expected = torch.einsum("tk,tnk->tn", x[order.long()], values[chosen])
    torch.testing.assert_close(product, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [32, 128])
def test_integers_with_zero_points_equal_their_values(width: int) -> None:
    from engine.kernels.matmul.packed4 import packed4_matmul
    from engine.modeling.layers.formats.packed4_gpu import interleaved

    torch.manual_seed(0)
    features, depth = 24, 384
    codes = torch.randint(0, 16, (features, depth), dtype=torch.uint8)
    zero = torch.randint(0, 16, (features, depth // width)).float()
    scale = torch.rand(features, depth // width)
    x = torch.randn(5, depth)

    product = packed4_matmul(x, interleaved(codes, zero, scale))

    values = (codes.view(features, -1, width) - zero.unsqueeze(2)) * scale.unsqueeze(2)
    torch.testing.assert_close(product, x @ values.flatten(1).t(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 3, 13])
@pytest.mark.parametrize(("depth", "features"), [(1024, 64), (640, 32), (8448, 32)])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_a_few_rows_times_integers_equal_their_values(
    width: int, depth: int, features: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer groups in the last step than in others, too."""
    from engine.kernels.matmul import packed4_few_rows
    from engine.modeling.layers.formats.packed4_gpu import interleaved

    monkeypatch.setattr(packed4_few_rows, "supports_pdl", lambda device: False)
    torch.manual_seed(0)
    codes = torch.randint(0, 16, (features, depth), dtype=torch.uint8)
    zero = torch.randint(0, 17, (features, depth // width)).float()
    scale = torch.rand(features, depth // width)
    x, bias = torch.randn(rows, depth), torch.randn(features)

    product = packed4_few_rows.packed4_few_rows(x, interleaved(codes, zero, scale), bias)

    values = (codes.view(features, -1, width) - zero.unsqueeze(2)) * scale.unsqueeze(2)
    torch.testing.assert_close(product, x @ values.flatten(1).t() + bias, rtol=1e-4, atol=1e-2)
