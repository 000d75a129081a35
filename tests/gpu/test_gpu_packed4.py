"""Products of 4-bit integers and floats against float32 products of the values that they stand for."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.quantization import Nvfp4Names
from engine.modeling.layers.formats.fp4 import Mxfp4, Nvfp4
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.routing import Routes, route

CUDA = torch.device("cuda")


def stored(*shape: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    values = torch.randint(0, 16, shape, dtype=torch.uint8, device=CUDA)
    groups = (*shape[:-1], shape[-1] // group)
    return values, torch.randint(0, 17, groups, device=CUDA).float(), torch.rand(groups, device=CUDA) * 0.01


def dense(values: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    grouped = values.reshape(*scale.shape, -1).float()
    return ((grouped - zero.unsqueeze(-1)) * scale.unsqueeze(-1)).flatten(-2).bfloat16().float()


def close(products: torch.Tensor, expected: torch.Tensor) -> None:
    error = (products.float() - expected).norm() / expected.norm()
    assert error < 0.01, f"{float(error):.4f}: more than bfloat16's rounding"


@pytest.mark.parametrize("tokens", [1, 4, 16, 20, 64, 200, 1000])
@pytest.mark.parametrize(
    ("depth", "features", "group"),
    [
        (4096, 6144, 128),
        (4096, 28_672, 128),
        (14_336, 4096, 128),
        (8960, 1536, 32),
        (1024, 72, 32),
        (512, 256, 64),
        (1024, 256, 512),
    ],
)
def test_products_equal_those_of_the_dequantized_values(
    depth: int, features: int, group: int, tokens: int
) -> None:
    from engine.modeling.layers.formats.packed4_gpu import Packed4OnGpu, interleaved

    parts = stored(features, depth, group=group)
    method = Packed4OnGpu(interleaved(*parts))
    x = torch.randn(tokens, depth, device=CUDA, dtype=torch.bfloat16)

    close(method.apply(Linear(1, 1, bias=False), x, None), x.float() @ dense(*parts).t())


@pytest.mark.parametrize("tokens", [1, 8, 40])
def test_products_in_float16_equal_those_of_the_dequantized_values(tokens: int) -> None:
    from engine.modeling.layers.formats.packed4_gpu import Packed4OnGpu, interleaved

    parts = stored(6144, 4096, group=128)
    x = torch.randn(tokens, 4096, device=CUDA, dtype=torch.float16)

    product = Packed4OnGpu(interleaved(*parts)).apply(Linear(1, 1, bias=False), x, None)

    close(product, x.float() @ dense(*parts).t())


def test_a_matrix_larger_than_the_memory_is_expanded_in_parts() -> None:
    from engine.modeling.layers.formats import packed4_gpu

    parts = stored(6144, 4096, group=128)
    x = torch.randn(200, 4096, device=CUDA, dtype=torch.bfloat16)
    memory = packed4_gpu._expanded(CUDA, torch.bfloat16)
    small = memory[: 1000 * 4096]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed4_gpu, "_expanded", lambda *_: small)
        products = packed4_gpu.Packed4OnGpu(packed4_gpu.interleaved(*parts)).by_cublas(x)

    close(products, x.float() @ dense(*parts).t())


@pytest.mark.parametrize("tokens", [1, 7, 100, 2000])
def test_experts_products_equal_those_of_the_dequantized_values(tokens: int) -> None:
    from engine.modeling.layers.formats.packed4_gpu import GroupedPacked4, interleaved

    parts = stored(8, 768, 1024, group=128)
    routes = eight_experts(tokens)
    x = torch.randn(tokens, 1024, device=CUDA, dtype=torch.bfloat16)

    products = GroupedPacked4(interleaved(*parts))(x, routes, True)

    close(products, each_expert(x, routes, dense(*parts)))


def eight_experts(tokens: int) -> Routes:
    """Two of them for each token."""
    spec = ExpertSpec(count=8, per_token=2, intermediate_size=8)
    routed = route(torch.randn(tokens, 8, device=CUDA), None, spec)
    return Routes(routed.weights, routed.order.int(), routed.starts.int(), routed.places.int())


def each_expert(x: torch.Tensor, routes: Routes, weights: torch.Tensor) -> torch.Tensor:
    """The pairs' products, one expert after the other."""
    expected = torch.empty(len(routes.order), weights.shape[1], device=CUDA)
    for expert, (start, end) in enumerate(pairwise(routes.starts.tolist())):
        rows = routes.order[start:end].long() // 2
        expected[start:end] = x[rows].float() @ weights[expert].t()
    return expected


def fp4(kind: str, *shape: int) -> tuple[Mxfp4 | Nvfp4, dict[str, torch.Tensor], torch.Tensor]:
    """A format, the parameters of weights [..., out, in], and their values."""
    torch.manual_seed(0)
    blocks = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, device=CUDA)
    if kind == "mxfp4":
        scales = torch.randint(110, 125, (*shape[:-1], shape[-1] // 32), dtype=torch.uint8, device=CUDA)
        parts = {"blocks": blocks, "scales": scales}
        return Mxfp4(torch.bfloat16), parts, Mxfp4(torch.float32).dense(parts)
    scale = torch.rand(*shape[:-1], shape[-1] // 16, device=CUDA) * 448
    factor = torch.rand(*shape[:-1], device=CUDA) * 1e-4
    parts = {"blocks": blocks, "scales": scale.to(torch.float8_e4m3fn), "factor": factor}
    names = Nvfp4Names.MODELOPT
    return Nvfp4(torch.bfloat16, names), parts, Nvfp4(torch.float32, names).dense(parts)


@pytest.mark.parametrize("tokens", [1, 5, 64, 1000])
@pytest.mark.parametrize(("depth", "features"), [(1024, 256), (2880, 5760)])
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_products_of_4_bit_floats_equal_those_of_the_values(
    kind: str, depth: int, features: int, tokens: int
) -> None:
    format, parts, values = fp4(kind, features, depth)
    method = format.on_device(parts)
    assert method is not None
    x = torch.randn(tokens, depth, device=CUDA, dtype=torch.bfloat16)

    close(method.apply(Linear(1, 1, bias=False), x, None), x.float() @ values.t())


@pytest.mark.parametrize("tokens", [1, 7, 100, 2000])
@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_experts_of_4_bit_floats_equal_those_of_the_values(kind: str, tokens: int) -> None:
    depth = 2880
    format, parts, values = fp4(kind, 8, 5760, depth)
    product = format.grouped_on_device(parts)
    assert product is not None
    routes = eight_experts(tokens)
    x = torch.randn(tokens, depth, device=CUDA, dtype=torch.bfloat16)

    close(product(x, routes, True), each_expert(x, routes, values))
