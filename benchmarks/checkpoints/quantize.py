"""Write a model in 4-bit integers or 8-bit floats, as compressed-tensors stores it, with GPTQ or by rounding.

python -m benchmarks.checkpoints.quantize --model smollm2 --method gptq --output /tmp/smollm2-gptq
python -m benchmarks.checkpoints.quantize --model smollm2 --format fp8 --output /tmp/smollm2-fp8
python -m benchmarks.checkpoints.perplexity --model smollm2 /tmp/smollm2-gptq /tmp/smollm2-fp8

GPTQ (arXiv 2210.17323) rounds a matrix column by column and corrects the columns that follow for the error,
by the second moments of the layer's inputs on a text: the standard library's docstrings. Columns of larger
inputs come first; groups keep their places, so checkpoints need no order. Scales of 4 bits minimise a group's
error, with each column's by the mean square of its input, and are fitted to all products of their row once
the integers are chosen.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import shutil
import sys
import xml
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.lib.command import command
from benchmarks.lib.model_folder import model_folder

_SHRINKS: Final = [1.0 - 0.02 * step for step in range(20)]
"""Of a group's range, that are tried."""
_DAMPING: Final = 0.01
"""Of the mean of the diagonal of second moments, added to it."""
_BLOCK: Final = 128
_FP8: Final = torch.float8_e4m3fn


class Grid(Protocol):
    """The values that a matrix [out, in] may have; codes are floats."""

    def codes(self, column: Tensor, index: int) -> Tensor:
        """Of column `index` [out] of a weight."""
        ...

    def values(self, codes: Tensor, index: int) -> Tensor:
        """Of codes of column `index`."""
        ...

    def fitted(self, weight: Tensor, codes: Tensor, moments: Tensor) -> Grid:
        """With the scales that make the products of `codes` those of `weight`."""
        ...

    def dense(self, codes: Tensor) -> Tensor: ...

    def stored(self, codes: Tensor) -> dict[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class Floats:
    """value = code * scale, with a scale per row: e4m3."""

    scale: Tensor
    """[out, 1]"""

    def codes(self, column: Tensor, index: int) -> Tensor:
        return (column / self.scale[:, 0]).clamp(-448, 448).to(_FP8).float()

    def values(self, codes: Tensor, index: int) -> Tensor:
        return codes * self.scale[:, 0]

    def fitted(self, weight: Tensor, codes: Tensor, moments: Tensor) -> Floats:
        return self

    def dense(self, codes: Tensor) -> Tensor:
        return codes * self.scale

    def stored(self, codes: Tensor) -> dict[str, Tensor]:
        return {"weight": codes.to(_FP8), "weight_scale": self.scale}


@dataclass(frozen=True, slots=True)
class Integers:
    """value = (code - zero) * scale, with a scale and a zero per row and group."""

    scale: Tensor
    """[out, groups]"""
    zero: Tensor
    group: int
    symmetric: bool

    def codes(self, column: Tensor, index: int) -> Tensor:
        at = index // self.group
        return (column / self.scale[:, at] + self.zero[:, at]).round().clamp(0, 15)

    def values(self, codes: Tensor, index: int) -> Tensor:
        at = index // self.group
        return (codes - self.zero[:, at]) * self.scale[:, at]

    def fitted(self, weight: Tensor, codes: Tensor, moments: Tensor) -> Integers:
        """Least squares, row by row, drawn to the present scales."""
        rows, groups = self.scale.shape
        steps = (codes.view(rows, groups, -1) - self.zero.unsqueeze(2)).flatten(1)
        normal = torch.empty(rows, groups, groups)
        for at in range(groups):
            columns = slice(at * self.group, (at + 1) * self.group)
            normal[:, at] = (steps[:, columns] @ moments[columns] * steps).view(rows, groups, -1).sum(2)
        error = (weight - self.dense(codes)) @ moments * steps
        normal.diagonal(dim1=1, dim2=2).mul_(1 + _DAMPING).add_(1e-6)
        change = torch.linalg.solve(normal, error.view(rows, groups, -1).sum(2))
        return replace(self, scale=(self.scale + change).half().float())

    def dense(self, codes: Tensor) -> Tensor:
        steps = codes.view(*self.scale.shape, -1) - self.zero.unsqueeze(2)
        return (steps * self.scale.unsqueeze(2)).flatten(1)

    def stored(self, codes: Tensor) -> dict[str, Tensor]:
        tensors = {
            "weight_packed": _words(codes),
            "weight_scale": self.scale.half(),
            "weight_shape": torch.tensor(codes.shape),
        }
        if not self.symmetric:
            tensors["weight_zero_point"] = _words(self.zero.t()).t().contiguous()
        return tensors


def floats(weight: Tensor, moments: Tensor) -> Floats:
    return Floats(weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448)


def integers(weight: Tensor, moments: Tensor, group: int, *, symmetric: bool) -> Integers:
    """Of the least error of a group's products, by the mean squares of its inputs."""
    importance = moments.diagonal().view(1, -1, group)
    grouped = weight.view(len(weight), -1, group)
    low, high = grouped.amin(2).clamp(max=0), grouped.amax(2).clamp(min=0)
    if symmetric:
        high = torch.maximum(high, -low)
        low = -high
    best = torch.full_like(low, torch.inf)
    scale, zero = torch.ones_like(low), torch.zeros_like(low)
    for shrink in _SHRINKS:
        step = ((high - low) * shrink / 15).half().float().clamp(min=1e-6)
        nought = torch.full_like(low, 8) if symmetric else (-low * shrink / step).round().clamp(0, 15)
        codes = (grouped / step.unsqueeze(2) + nought.unsqueeze(2)).round().clamp(0, 15)
        error = ((codes - nought.unsqueeze(2)) * step.unsqueeze(2) - grouped).square()
        error = (error * importance).sum(2)
        better = error < best
        best = torch.where(better, error, best)
        scale, zero = torch.where(better, step, scale), torch.where(better, nought, zero)
    return Integers(scale, zero, group, symmetric)


def rounded(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """Codes [out, in] of the nearest values."""
    return torch.stack([grid.codes(column, index) for index, column in enumerate(weight.t())], dim=1)


def gptq(weight: Tensor, moments: Tensor, grid: Grid) -> Tensor:
    """Codes [out, in]; `moments` [in, in] of the inputs."""
    moments = moments.clone()
    diagonal = moments.diagonal()
    diagonal[diagonal == 0] = 1.0
    order = diagonal.argsort(descending=True)
    diagonal += _DAMPING * diagonal.mean()
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments[order][:, order]))
    factor = torch.linalg.cholesky(inverse, upper=True)
    rest, codes = weight[:, order].clone(), torch.empty_like(weight)
    places = order.tolist()
    for start in range(0, len(places), _BLOCK):
        end = min(start + _BLOCK, len(places))
        errors = torch.zeros(len(weight), end - start)
        for at in range(start, end):
            column, place = rest[:, at], places[at]
            codes[:, place] = grid.codes(column, place)
            error = (column - grid.values(codes[:, place], place)) / factor[at, at]
            rest[:, at:end] -= error.unsqueeze(1) * factor[at, at:end]
            errors[:, at - start] = error
        rest[:, end:] -= errors @ factor[start:end, end:]
    return codes


METHODS: Final[dict[str, Callable[[Tensor, Tensor, Grid], Tensor]]] = {"gptq": gptq, "round": rounded}


@torch.no_grad()
def quantize(
    model: Any, ids: Tensor, method: str, grid_of: Callable[[Tensor, Tensor], Grid]
) -> dict[str, Tensor]:
    """Quantize the linear layers of a transformers model in place, layer by layer; their tensors.

    `ids` [texts, tokens] calibrate: each layer's inputs are those that the quantized layers before it give.
    """
    tensors: dict[str, Tensor] = {}
    hidden, settings = _inputs(model, ids)
    for number, layer in enumerate(model.model.layers):
        linears = {name: part for name, part in layer.named_modules() if isinstance(part, nn.Linear)}
        moments = _moments(layer, linears, hidden, settings)
        for name, linear in linears.items():
            grid = grid_of(linear.weight, moments[name])
            codes = METHODS[method](linear.weight, moments[name], grid)
            if method != "round":
                grid = grid.fitted(linear.weight, codes, moments[name])
            linear.weight.copy_(grid.dense(codes))
            prefix = f"model.layers.{number}.{name}"
            tensors |= {f"{prefix}.{key}": value for key, value in grid.stored(codes).items()}
        hidden = [_output(layer, x, settings) for x in hidden]
        print(f"layer {number + 1} of {len(model.model.layers)}", file=sys.stderr)
    return tensors


class _Reached(Exception):
    pass


def _inputs(model: Any, ids: Tensor) -> tuple[list[Tensor], dict[str, Any]]:
    """Of the first layer."""
    hidden: list[Tensor] = []
    settings: dict[str, Any] = {}

    def keep(layer: nn.Module, positional: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        hidden.append(positional[0] if positional else named.pop("hidden_states"))
        settings.update(named)
        raise _Reached

    hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    for text in ids:
        with suppress(_Reached):
            model(text.unsqueeze(0), use_cache=False)
    hook.remove()
    return hidden, settings


def _moments(
    layer: nn.Module, linears: dict[str, nn.Linear], hidden: list[Tensor], settings: dict[str, Any]
) -> dict[str, Tensor]:
    moments = {name: torch.zeros(linear.in_features, linear.in_features) for name, linear in linears.items()}

    def adding(name: str) -> Callable[..., None]:
        def add(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].flatten(0, -2)
            moments[name].addmm_(rows.t(), rows)

        return add

    hooks = [linear.register_forward_pre_hook(adding(name)) for name, linear in linears.items()]
    for x in hidden:
        _output(layer, x, settings)
    for hook in hooks:
        hook.remove()
    return moments


def _output(layer: nn.Module, x: Tensor, settings: dict[str, Any]) -> Tensor:
    output = layer(x, **settings)
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found


def _words(codes: Tensor) -> Tensor:
    """[m, 8 n] -> [m, n] int32, the first value in the lowest bits."""
    words: Tensor = (codes.long().reshape(len(codes), -1, 8) << torch.arange(0, 32, 4)).sum(2)
    return (words - ((words >> 31) << 32)).int()


def docstrings() -> str:
    """Of the standard library's modules, classes and functions."""
    found: dict[str, None] = {}
    names = sorted(
        {info.name for info in pkgutil.iter_modules(xml.__path__, "xml.")} | sys.stdlib_module_names
    )
    with redirect_stdout(None), redirect_stderr(None):
        for name in names:
            if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo", "test"):
                continue
            with suppress(Exception):
                module = importlib.import_module(name)
                members = [
                    module,
                    *(member for _, member in sorted(vars(module).items()) if callable(member)),
                ]
                found |= {inspect.cleandoc(text): None for member in members if (text := member.__doc__)}
    return "\n\n".join(text for text in found if len(text) > 200)


def main() -> None:
    parser = command("checkpoints.quantize", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--format", choices=("int4", "fp8"), default="int4")
    parser.add_argument("--method", choices=METHODS, default="gptq")
    parser.add_argument("--group", type=int, default=32, help="of 4-bit integers")
    parser.add_argument("--symmetric", action="store_true", help="4-bit integers without zero points")
    parser.add_argument("--texts", type=int, default=48, help="of 512 tokens, that calibrate")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    folder = model_folder(options.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(docstrings())["input_ids"])
    ids = ids[: options.texts * 512].view(-1, 512)
    grid_of: Callable[[Tensor, Tensor], Grid] = floats
    if options.format == "int4":
        grid_of = partial(integers, group=options.group, symmetric=options.symmetric)
    tensors = quantize(model, ids, options.method, grid_of)
    quantized = {name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale")}
    left = {
        name: value.contiguous()
        for name, value in model.state_dict().items()
        if name.rpartition(".")[0] not in quantized and name != "lm_head.weight"
    }
    shutil.copytree(folder, options.output, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_file(tensors | left, options.output / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization_config(
        options.format, options.group, symmetric=options.symmetric
    )
    (options.output / "config.json").write_text(json.dumps(config, indent=2))


def quantization_config(format: str, group: int, *, symmetric: bool) -> dict[str, Any]:
    """As config.json of the checkpoint has it."""
    inputs = None
    if format == "fp8":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
        inputs = weights | {"strategy": "token", "dynamic": True}
    else:
        weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group}
        weights["symmetric"] = symmetric
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if format == "fp8" else "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        },
    }


if __name__ == "__main__":
    main()
