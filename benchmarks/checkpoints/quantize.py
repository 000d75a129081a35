"""Write a model in 4-bit integers or 8-bit floats, as compressed-tensors stores it, with GPTQ or by rounding.

python -m benchmarks.checkpoints.quantize --model smollm2 --method gptq --output /tmp/smollm2-gptq
python -m benchmarks.checkpoints.quantize --model smollm2 --format fp8 --output /tmp/smollm2-fp8
python -m benchmarks.checkpoints.perplexity --model smollm2 /tmp/smollm2-gptq /tmp/smollm2-fp8

Layer by layer, on a text: the standard library's docstrings, or --text. The inputs of a matrix are those that
the quantized matrices before it give. Scales of 4 bits minimise a group's error, with each column's by the
mean square of its input; `gptq` has the choice of codes. For models with the layers of Llama.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.checkpoints import calibration
from benchmarks.checkpoints.gptq import METHODS, damped
from benchmarks.checkpoints.grids import Grid, floats, integers
from benchmarks.lib.command import command
from benchmarks.lib.model_folder import model_folder


@torch.no_grad()
def quantize(
    model: Any, ids: Tensor, method: str, grid_of: Callable[[Tensor, Tensor], Grid]
) -> dict[str, Tensor]:
    """Quantize the linear layers of a transformers model in place; their tensors.

    `ids` [texts, tokens] calibrate.
    """
    tensors: dict[str, Tensor] = {}
    hidden, settings = calibration.inputs(model, ids)
    for number, layer in enumerate(model.model.layers):
        for stage in calibration.STAGES:
            moments = calibration.moments(layer, stage, hidden, settings)
            for name in stage:
                linear = layer.get_submodule(name)
                of_inputs, weight = damped(moments[name]), linear.weight
                grid, codes = METHODS[method](weight, of_inputs, grid_of(weight, of_inputs))
                linear.weight.copy_(grid.dense(codes))
                prefix = f"model.layers.{number}.{name}"
                tensors |= {f"{prefix}.{key}": value for key, value in grid.stored(codes).items()}
        hidden = [calibration.output(layer, x, settings) for x in hidden]
        print(f"layer {number + 1} of {len(model.model.layers)}", file=sys.stderr)
    return tensors


def main() -> None:
    parser = command("checkpoints.quantize", __doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--format", choices=("int4", "fp8"), default="int4")
    parser.add_argument("--method", choices=METHODS, default="gptq")
    parser.add_argument("--group", type=int, default=32, help="of 4-bit integers")
    parser.add_argument("--symmetric", action="store_true", help="4-bit integers without zero points")
    parser.add_argument("--texts", type=int, default=48, help="of 512 tokens, that calibrate")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="default: docstrings")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    folder = model_folder(options.model)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)
    text = "\n\n".join(file.read_text() for file in options.text) or calibration.docstrings()
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(text)["input_ids"])
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
