"""Write a model in 4-bit integers or 8-bit floats, as compressed-tensors stores it.

python -m benchmarks.checkpoints.quantize --model smollm2 --method gptq --output /tmp/smollm2-gptq
python -m benchmarks.checkpoints.quantize --model smollm2 --format fp8 --output /tmp/smollm2-fp8
python -m benchmarks.checkpoints.perplexity --model smollm2 /tmp/smollm2-gptq /tmp/smollm2-fp8

Layer by layer: the inputs of a matrix are those that the quantized matrices before it give. Scales of 4 bits
minimise a group's error, with each column's by the mean square of its input; `gptq` has the choice of codes.
For models with the layers of Llama.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.checkpoints import calibration, texts
from benchmarks.checkpoints.gptq import damped, gptq
from benchmarks.checkpoints.grids import Grid, Matrix, floats, integers
from benchmarks.lib.command import command
from benchmarks.lib.model_folder import model_folder

GridOf: TypeAlias = Callable[[Tensor, Tensor], Grid]
"""From a weight and the second moments of its inputs."""
_TOKENS: Final = 1024


@torch.no_grad()
def quantize(model: Any, ids: Tensor, grid_of: GridOf, *, rounding: bool) -> dict[str, Matrix]:
    """The linear layers of a transformers model, quantized in place with GPTQ or by `rounding`, by name.

    `ids` [texts, tokens] calibrate.
    """
    matrices: dict[str, Matrix] = {}
    hidden, settings = calibration.inputs(model, ids)
    for number, layer in enumerate(model.model.layers):
        for stage in calibration.STAGES:
            of_inputs = damped(calibration.moments(layer, stage, hidden, settings))
            linears = [layer.get_submodule(name) for name in stage]
            weight = torch.cat([linear.weight for linear in linears])
            grid = grid_of(weight, of_inputs)
            codes = grid.all_codes(weight) if rounding else gptq(weight, of_inputs, grid)
            end = 0
            for name, linear in zip(stage, linears, strict=True):
                start, end = end, end + len(linear.weight)
                matrix = Matrix(grid.rows(start, end), codes[start:end])
                linear.weight.copy_(matrix.dense)
                matrices[f"model.layers.{number}.{name}"] = matrix
        hidden = [calibration.output(layer, x, settings) for x in hidden]
        print(f"layer {number + 1} of {len(model.model.layers)}", file=sys.stderr)
    return matrices


def make_parser() -> argparse.ArgumentParser:
    parser = command("checkpoints.quantize", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--format", choices=("int4", "fp8"), default="int4")
    parser.add_argument("--method", choices=("round", "gptq"), default="gptq")
    parser.add_argument("--group", type=int, default=32, help="of 4-bit integers")
    parser.add_argument("--symmetric", action="store_true", help="4-bit integers without zero points")
    parser.add_argument("--texts", type=int, default=48, help="of 1024 tokens, that calibrate")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="default: of installed packages")
    parser.add_argument(
        "--unlike", type=Path, nargs="*", default=[], help="texts of which no passage calibrates"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def main() -> None:
    options = make_parser().parse_args()
    folder = model_folder(options.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    model = model.to(options.device)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text, unlike = (
        tokenizer("\n\n".join(parts))["input_ids"]
        for parts in (
            map(Path.read_text, options.text) if options.text else texts.installed(),
            map(Path.read_text, options.unlike),
        )
    )
    ids = calibration.texts_of(text, _TOKENS, unlike).to(options.device)
    grid_of: GridOf = floats
    if options.format == "int4":
        grid_of = partial(integers, group=options.group, symmetric=options.symmetric)
    matrices = quantize(model, ids[: options.texts], grid_of, rounding=options.method == "round")
    shutil.copytree(folder, options.output, ignore=shutil.ignore_patterns("*.safetensors*"))
    save_file(tensors_of(model, matrices), options.output / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization_config(
        options.format, options.group, symmetric=options.symmetric
    )
    (options.output / "config.json").write_text(json.dumps(config, indent=2))


def tensors_of(model: Any, matrices: Mapping[str, Matrix]) -> dict[str, Tensor]:
    """Of a checkpoint: the quantized `matrices`, and what else the model has."""
    quantized = {
        f"{name}.{key}": value for name, matrix in matrices.items() for key, value in matrix.stored.items()
    }
    tied = {"lm_head"} if model.config.tie_word_embeddings else set()
    left = {
        name: value
        for name, value in model.state_dict().items()
        if name.rpartition(".")[0] not in matrices.keys() | tied
    }
    return {name: value.cpu().contiguous() for name, value in (quantized | left).items()}


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
