"""Products of 8-bit floats against float32 products of the values that they stand for."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
import torch

from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.formats.fp8 import FP8, Fp8Blocks, Fp8Rows, row_scales
from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.routing import Routes, route

CUDA = torch.device("cuda")
BF16 = torch.bfloat16
SHAPES = [(256, 512), (4096, 6144), (768, 2048), (14_336, 4096)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("the device does not multiply 8-bit floats")


def close(products: torch.Tensor, expected: torch.Tensor) -> None:
    error = (products.float() - expected).norm() / expected.norm()
    assert error < 0.01, f"{float(error):.4f}: more than bfloat16's rounding"


def rows_as_values(x: torch.Tensor) -> torch.Tensor:
    """`x` after quantization row by row."""
    scale = row_scales(x).unsqueeze(-1)
    return (x.float() / scale).to(FP8).float() * scale


def groups_as_values(x: torch.Tensor) -> torch.Tensor:
    return rows_as_values(x.unflatten(1, (-1, 128))).flatten(1)


def stored(method: Fp8Rows | Fp8Blocks, *shape: int) -> dict[str, torch.Tensor]:
    weight = torch.randn(shape, device=CUDA).mul_(50).to(FP8)
    if isinstance(method, Fp8Rows):
        scale = torch.rand(shape[:-1], device=CUDA) * 1e-3
    else:
        scale = torch.rand(*shape[:-2], shape[-2] // 128, shape[-1] // 128, device=CUDA) * 1e-3
    return {"weight": weight, "weight_scale": scale}


@pytest.mark.parametrize("tokens", [1, 5, 16, 64, 67, 1000, 1023])
@pytest.mark.parametrize(("depth", "features"), SHAPES)
@pytest.mark.parametrize("kind", [Fp8Rows, Fp8Blocks])
def test_products_equal_those_of_the_dequantized_values(
    kind: type[Fp8Rows | Fp8Blocks], depth: int, features: int, tokens: int
) -> None:
    method = kind(BF16)
    parts = stored(method, features, depth)
    packed = cast(LinearMethod, method.on_device(parts))
    x = torch.randn(tokens, depth, device=CUDA, dtype=BF16) * 3
    bias = torch.randn(features, device=CUDA, dtype=BF16)

    products = packed.apply(Linear(1, 1, bias=False), x, bias)

    values = rows_as_values(x) if kind is Fp8Rows else groups_as_values(x)
    close(products, values @ kind(torch.float32).dense(parts).t() + bias.float())


@pytest.mark.parametrize("rows_of_input", [1, 2, 8, 16, 17])
@pytest.mark.parametrize(("depth", "features"), [*SHAPES, (4096, 28_672)])
@pytest.mark.parametrize("kind", [Fp8Rows, Fp8Blocks])
def test_a_gated_product_is_that_of_its_halves(
    kind: type[Fp8Rows | Fp8Blocks], depth: int, features: int, rows_of_input: int
) -> None:
    """In one kernel for few rows."""
    method = kind(BF16)
    packed = cast(LinearMethod, method.on_device(stored(method, features, depth)))
    x = torch.randn(rows_of_input, depth, device=CUDA, dtype=BF16) * 3
    layer = Linear(1, 1, bias=False)

    fused = packed.gated(layer, x)

    if rows_of_input > 16:
        assert fused is None
    else:
        assert fused is not None
        close(fused, Ops().gate(packed.apply(layer, x, None).float(), Activation.SILU))


@pytest.mark.parametrize("tokens", [1, 7, 100, 2000])
@pytest.mark.parametrize(("depth", "features"), SHAPES[:3])
@pytest.mark.parametrize("kind", [Fp8Rows, Fp8Blocks])
def test_experts_products_equal_those_of_the_dequantized_values(
    kind: type[Fp8Rows | Fp8Blocks], depth: int, features: int, tokens: int
) -> None:
    spec = ExpertSpec(count=8, per_token=2, intermediate_size=features)
    method = kind(BF16)
    parts = stored(method, 8, features, depth)
    product = method.grouped_on_device(parts)
    assert product is not None
    torch_routes = route(torch.randn(tokens, 8, device=CUDA), None, spec)
    routes = Routes(
        torch_routes.weights, torch_routes.order.int(), torch_routes.starts.int(), torch_routes.places.int()
    )
    x = torch.randn(tokens, depth, device=CUDA, dtype=BF16)

    products = product(x, routes, True)

    values = rows_as_values(x) if kind is Fp8Rows else groups_as_values(x)
    dense = kind(torch.float32).dense(parts)
    expected = torch.empty(products.shape, device=CUDA)
    for expert, (start, end) in enumerate(pairwise(routes.starts.tolist())):
        of_expert = routes.order[start:end].long() // 2
        expected[start:end] = values[of_expert] @ dense[expert].t()
    close(products, expected)


@pytest.mark.parametrize("size", [100, 4096, 14_336])
def test_activations_are_quantized_as_torch_does_it(size: int) -> None:
    from engine.kernels.matmul.fp8_quantize import quantize_groups, quantize_rows

    x = torch.randn(33, size, device=CUDA, dtype=BF16)
    values, scales = quantize_rows(x)
    torch.testing.assert_close(scales, row_scales(x))
    close(values.float() * scales.unsqueeze(1), rows_as_values(x))
    if size % 128 == 0:
        values, scales = quantize_groups(x)
        spread = scales.repeat_interleave(128, 1)
        close(values.float() * spread, groups_as_values(x))
