"""Times of an expert layer's parts on a GPU, beside what its weights and its arithmetic take at least.

    python -m benchmarks.micro.experts --model FOLDER --tokens 1,16,64,256,512,2048,16384
    python -m benchmarks.micro.experts --model FOLDER --tilings     # the fastest tiles of each product

Weights and activations are random, so tokens spread evenly over experts.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.lib.command import command
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.expert_spec import ExpertSpec
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.experts import ExpertMLP
from engine.modeling.layers.factory import Layers
from engine.modeling.layers.ops.flashinfer_ops import FlashInferOps
from engine.modeling.layers.routing import Routes
from engine.modeling.loader.dummy_weights import fill_randomly
from engine.modeling.models.mlp_table import mlp_names
from engine.parallel.communicator import SINGLE_RANK

_BYTES_PER_S: Final = 4.2e12
_FLOPS: Final = 680e12
"""What an H200 sustains, reads and bf16 products."""


class _Layer:
    """The parts of one expert layer, with random weights in the model's format."""

    def __init__(self, spec: ModelSpec, experts: ExpertSpec) -> None:
        self.hidden, self.spec, self.ops = spec.hidden_size, experts, FlashInferOps()
        self.weight_bytes = spec.bytes_per_weight(2)
        layers = Layers(self.ops, SINGLE_RANK, spec.quantization)
        self.live = layers.live_rows
        mlp = layers.mlp(spec, spec.num_layers - 1, mlp_names(spec))
        assert isinstance(mlp, ExpertMLP)
        fill_randomly(mlp, seed=0)
        self.router, self.gate_up, self.down = mlp.router, mlp.gate_up, mlp.down
        for part in (self.router, self.gate_up, self.down):
            part.pack()

    def parts(self, tokens: int) -> dict[str, Callable[[], Any]]:
        """What to call for each part, in the order in which a layer computes them."""
        x = torch.randn(tokens, self.hidden)
        self.live.expect(tokens)
        routes: Routes = self.router(x)
        both = self.gate_up(x, routes, by_token=True)
        inner = self.ops.gate(both, Activation.SILU)
        output = self.down(inner, routes)
        return {
            "router": lambda: self.router(x),
            "gate and up": lambda: self.gate_up(x, routes, by_token=True),
            "silu": lambda: self.ops.gate(both, Activation.SILU),
            "down": lambda: self.down(inner, routes),
            "sum": lambda: self.ops.weighted_sum(output, routes),
        }

    def floor_ms(self, tokens: int) -> float:
        """The longer of reading the weights of all experts that have tokens, and of the arithmetic."""
        pairs = tokens * self.spec.per_token
        matrices = 3 * self.hidden * self.spec.intermediate_size
        used = self.spec.count * (1 - (1 - 1 / self.spec.count) ** pairs)
        return 1e3 * max(self.weight_bytes * used * matrices / _BYTES_PER_S, 2 * pairs * matrices / _FLOPS)


def _seconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """Of one call on the device, median of several, replayed from a graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    cold = torch.empty(64 << 20)  # as between layers, weights are not in the cache
    times: list[float] = []
    for _ in range(repeats):
        cold.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[repeats // 2]


def _print_parts(layer: _Layer, counts: list[int]) -> None:
    for tokens in counts:
        times = {name: 1e3 * _seconds(call) for name, call in layer.parts(tokens).items()}
        row = {name: round(ms, 4) for name, ms in times.items()}
        total, floor = sum(times.values()), layer.floor_ms(tokens)
        print(
            json.dumps({"tokens": tokens, "ms": round(total, 4), "floor": round(floor, 4), **row}), flush=True
        )


def _print_tilings(layer: _Layer, counts: list[int]) -> None:
    """The five fastest tilings of both products, and the time of the one that is chosen."""
    import engine.kernels.matmul.grouped_matmul as kernel

    chosen = kernel._tiling
    size = 1 if layer.weight_bytes < 2 else 2
    shapes = itertools.product((16, 32, 64, 128), (64, 128, 256)[: 1 + size], (64, 128)[2 - size :], (3, 4))
    tilings = [
        kernel._Tiling(rows, features, depth, 8 if rows * features >= 128 * 128 else 4, stages)
        for rows, features, depth, stages in shapes
        if (rows + features) * depth * size * stages <= 220_000
    ]
    for tokens in counts:
        parts = layer.parts(tokens)
        for name in ("gate and up", "down"):
            kernel._tiling = chosen
            now = _seconds(parts[name])
            times: list[tuple[float, tuple[int, ...]]] = []
            for tiling in tilings:
                kernel._tiling = lambda *_, tiling=tiling: tiling
                try:
                    times.append((_seconds(parts[name], 8), tuple(tiling)))
                except Exception:  # more shared memory or registers than there are
                    torch.cuda.synchronize()
            best = [[round(1e3 * t, 4), *tiling] for t, tiling in sorted(times)[:5]]
            print(
                json.dumps({"tokens": tokens, "product": name, "now": round(1e3 * now, 4), "best": best}),
                flush=True,
            )
    kernel._tiling = chosen


def main() -> None:
    parser = command("micro.experts", __doc__)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FOLDER", help="a folder with config.json"
    )
    parser.add_argument("--tokens", default="1,16,64,256,512,2048,16384", metavar="N,…")
    parser.add_argument("--tilings", action="store_true")
    options = parser.parse_args()
    spec = ModelSpec.from_config(json.loads((options.model / "config.json").read_text()))
    if spec.experts is None:
        parser.error(f"--model {options.model}: has no experts")
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.bfloat16)
    counts = [int(tokens) for tokens in options.tokens.split(",")]
    with torch.inference_mode():
        (_print_tilings if options.tilings else _print_parts)(_Layer(spec, spec.experts), counts)


if __name__ == "__main__":
    main()
