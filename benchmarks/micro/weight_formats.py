"""Time of matrix products on a GPU by format of the weights, and of experts beside torch's grouped product.

python -m benchmarks.micro.weight_formats --rows 1,16,64,256,2048,8192
python -m benchmarks.micro.weight_formats --experts 128:8 --shapes 2048x1536,768x2048

Each product is timed in a CUDA graph over as many weights as exceed the cache. A shape is IN x OUT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import torch
from torch import Tensor

from benchmarks.lib.command import command
from engine.kernels.matmul.packed4 import Packed4, packed4_matmul
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.modeling.layers.formats.fp8 import Fp8Blocks, Fp8Rows
from engine.modeling.layers.formats.packed4_gpu import Packed4OnGpu, interleaved
from engine.modeling.layers.linear.grouped_gpu import GroupedWeight
from engine.modeling.layers.linear.linear_layer import Linear, LinearMethod
from engine.modeling.layers.routing import Routes, route

_BYTES: Final = 400 << 20
"""Weights that a graph reads: several times the cache."""
_DENSE: Final = "4096x6144,4096x4096,4096x28672,14336x4096"
"""Llama-3.1-8B's."""

Product = Callable[[Tensor], Tensor]


def _seconds(products: list[Product], x: Tensor) -> float:
    """Of one product: the fastest of 5 replays of all of them."""
    for product in products[:2]:
        product(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product(x)
    took = []
    for _ in range(6):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        took.append(began.elapsed_time(ended) / 1000)
    return float(min(took[1:])) / len(products)


def _scaled(weight: Tensor, blocks: bool) -> dict[str, Tensor]:
    """`weight` [..., out, in] in fp8, with scales of the right shape."""
    *stack, out, inner = weight.shape
    shape = (*stack, out // 128, inner // 128) if blocks else (*stack, out)
    scale = torch.full(shape, 0.02, dtype=torch.float32, device=weight.device)
    return {"weight": (weight.float() * 50).to(torch.float8_e4m3fn), "weight_scale": scale}


def _applied(method: LinearMethod | None) -> Product:
    assert method is not None
    layer = Linear(8, 8, bias=False)
    return lambda x: method.apply(layer, x, None)


def _dense(weights: list[Tensor]) -> Iterator[tuple[str, list[Product]]]:
    bf16 = torch.bfloat16
    yield "bf16 (cuBLAS, matvec)", [_plain(weight) for weight in weights]
    per_row = [Fp8Rows(bf16).on_device(_scaled(weight, blocks=False)) for weight in weights]
    yield "fp8 rows", [_applied(method) for method in per_row]
    blocks = [_scaled(weight, blocks=True) for weight in weights]
    yield "fp8 blocks, ours", [_applied(Fp8Blocks(bf16).on_device(stored)) for stored in blocks]
    int4 = [_int4(weight) for weight in weights]
    yield "4-bit, groups of 128", [_applied(method) for method in int4]
    yield "4-bit, expanded in tiles", [partial(_in_tiles, method.packed) for method in int4]
    yield "4-bit, expanded for cuBLAS", [method.by_cublas for method in int4]
    try:
        from flashinfer.gemm import fp8_blockscale_gemm_sm90  # compiled at first use: minutes
    except ImportError:
        return
    yield (
        "fp8 blocks, flashinfer",
        [
            lambda x, stored=stored: fp8_blockscale_gemm_sm90(  # type: ignore[misc]
                x, stored["weight"], None, stored["weight_scale"]
            )
            for stored in blocks
        ],
    )


def _in_tiles(packed: Packed4, x: Tensor) -> Tensor:
    return packed4_matmul(x, packed)


def _int4(weight: Tensor) -> Packed4OnGpu:
    rows, columns = weight.shape
    values = torch.randint(0, 16, weight.shape, dtype=torch.uint8, device=weight.device)
    scale = torch.full((rows, columns // 128), 0.004, device=weight.device)
    parts = interleaved(values, torch.full_like(scale, 8), scale)
    return Packed4OnGpu(parts)


def _plain(weight: Tensor) -> Product:
    layer = Linear(8, 8, bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def _grouped(stacks: list[Tensor], routes: Routes) -> Iterator[tuple[str, list[Product]]]:
    def ours(product: Callable[[Tensor, Routes, bool], Tensor]) -> Product:
        return lambda x: product(x, routes, True)

    def theirs(stack: Tensor) -> Product:
        ends = routes.starts[1:].int()
        source = routes.order.long() // routes.per_token
        return lambda x: torch.nn.functional.grouped_mm(x[source], stack.transpose(1, 2), offs=ends)

    yield "bf16, ours", [ours(GroupedWeight(stack)) for stack in stacks]
    yield "bf16, torch.grouped_mm with gather", [theirs(stack) for stack in stacks]
    for name, kind in (("rows", Fp8Rows), ("blocks", Fp8Blocks)):
        made = [kind(torch.bfloat16).grouped_on_device(_scaled(s, blocks=kind is Fp8Blocks)) for s in stacks]
        yield f"fp8 {name}, ours", [ours(product) for product in made if product is not None]


@torch.inference_mode()
def main() -> None:
    parser = command("micro.weight_formats", __doc__)
    parser.add_argument("--shapes", default=_DENSE, metavar="INxOUT,...")
    parser.add_argument("--rows", default="1,16,64,256,2048,8192", metavar="N,...")
    parser.add_argument("--experts", metavar="COUNT:PER_TOKEN", help="time products of experts")
    options = parser.parse_args()
    for shape in options.shapes.split(","):
        depth, features = (int(size) for size in shape.split("x"))
        dense = [] if options.experts else list(_dense(_weights(depth, features)))
        for rows in (int(count) for count in options.rows.split(",")):
            x = torch.randn(rows, depth, device="cuda", dtype=torch.bfloat16)
            for name, products in dense or _experts(depth, features, rows, options.experts):
                try:
                    seconds = _seconds(products, x)
                except Exception as error:
                    print(f"{shape:>12} {rows:6} rows  {name:36} failed: {str(error).splitlines()[0][:80]}")
                    continue
                print(f"{shape:>12} {rows:6} rows  {name:36} {1e6 * seconds:10.1f} µs", flush=True)


def _weights(depth: int, features: int) -> list[Tensor]:
    count = max(2, _BYTES // (2 * depth * features))
    return [torch.randn(features, depth, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(count)]


def _experts(depth: int, features: int, rows: int, experts: str) -> Iterator[tuple[str, list[Product]]]:
    of_all, per_token = (int(number) for number in experts.split(":"))
    spec = ExpertSpec(count=of_all, per_token=per_token, intermediate_size=features)
    routed = route(torch.randn(rows, of_all, device="cuda"), None, spec)
    routes = Routes(routed.weights, routed.order.int(), routed.starts.int(), routed.places.int())
    stacks = [
        torch.randn(of_all, features, depth, device="cuda", dtype=torch.bfloat16) * 0.02 for _ in range(2)
    ]
    yield from _grouped(stacks, routes)


if __name__ == "__main__":
    main()
