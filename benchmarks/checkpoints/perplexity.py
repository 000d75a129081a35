"""Perplexity of a model on a text, as it is and with other formats of its weights.

python -m benchmarks.checkpoints.perplexity --model smollm2 --quantization fp8
python -m benchmarks.checkpoints.perplexity --model smollm2 --packed float32 bfloat16
python -m benchmarks.checkpoints.perplexity --model /models/8B /models/8B-AWQ --device cuda
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from benchmarks.lib.command import command
from benchmarks.lib.model_folder import model_folder
from engine.modeling.layers.formats.quantized import CodesOnCpu
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM

_ROOT = Path(__file__).resolve().parents[2]


class _WholeSequence:
    """Attention of one sequence from its start, without a KV pool. An `Attention`."""

    def __init__(self, num_heads: int) -> None:
        self._num_heads = num_heads

    def forward(self, layer: int, qkv: Tensor, rotation: Rotation | None) -> Tensor:
        kv_heads = (qkv.shape[1] - self._num_heads) // 2
        q, k, v = torch.split(qkv, [self._num_heads, kv_heads, kv_heads], dim=1)
        if rotation is not None:
            both = rotation.turn(torch.cat((q, k), dim=1))
            q, k = torch.split(both, [self._num_heads, kv_heads], dim=1)
        q, k, v = (heads.transpose(0, 1) for heads in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(
            0, 1
        )


@torch.inference_mode()
def perplexity(model: CausalLM, ids: Tensor, window: int) -> float:
    """exp of the mean negative log-likelihood of `ids` [N], predicted within windows of `window` tokens."""
    attention = _WholeSequence(model.part.num_heads)
    total, count = 0.0, 0
    for piece in torch.split(ids, window):
        if len(piece) < 2:
            break
        model.expect(len(piece))
        hidden = model(piece, torch.arange(len(piece), device=ids.device), attention)
        logits = model.logits(hidden[:-1]).float()
        total += float(functional.cross_entropy(logits, piece[1:], reduction="sum"))
        count += len(piece) - 1
    return math.exp(total / count)


@dataclass(frozen=True, slots=True)
class Variant:
    """A model as it is loaded."""

    model: str
    dtype: str
    quantization: str | None = None
    packed: bool = False
    """Whether weights of a GGUF file stay integers."""

    @property
    def label(self) -> str:
        weights = "packed" if self.packed else self.quantization
        return " ".join(filter(None, (self.model, weights, self.dtype)))

    def load(self, device: str) -> CausalLM:
        folder = model_folder(self.model, keep_codes=self.packed)
        model = load_model(folder, device=device, dtype=self.dtype, quantization=self.quantization)
        if self.packed and not any(isinstance(m, Linear) and _multiplies_codes(m) for m in model.modules()):
            sys.exit(f"{self.model}: no kernel multiplies its integers here, or dense products are faster")
        return model


def _multiplies_codes(layer: Linear) -> bool:
    return isinstance(layer.method, CodesOnCpu)


def make_parser() -> argparse.ArgumentParser:
    parser = command("checkpoints.perplexity", __doc__)
    parser.add_argument("--model", nargs="+", default=["smollm2"])
    parser.add_argument(
        "--quantization", nargs="*", default=[], help="formats to try besides the models' own"
    )
    parser.add_argument(
        "--packed",
        nargs="*",
        default=[],
        metavar="DTYPE",
        help="integers of GGUF files as they are, on a CPU",
    )
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        action="append",
        metavar="FILE",
        help="files of one text; may be repeated; default: this repository's documentation",
    )
    parser.add_argument("--tokens", type=int, default=50_000, help="of each text")
    parser.add_argument("--window", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    return parser


def main() -> None:
    options = make_parser().parse_args()
    texts: list[list[Path]] = options.text or [sorted((_ROOT / "docs").glob("*.md"))]
    variants = [
        variant
        for model in options.model
        for variant in (
            *(Variant(model, options.dtype, quantization) for quantization in (None, *options.quantization)),
            *(Variant(model, dtype, packed=True) for dtype in options.packed),
        )
    ]
    first: list[float] = []
    for variant in variants:
        model = variant.load(options.device)
        tokenizer = AutoTokenizer.from_pretrained(model_folder(variant.model))
        for number, files in enumerate(texts):
            text = "\n\n".join(file.read_text() for file in files)
            ids = torch.tensor(tokenizer(text)["input_ids"][: options.tokens])
            found = perplexity(model, ids.to(options.device), options.window)
            first += [found] * (len(first) == number)
            rise = f"{100 * (found / first[number] - 1):+.2f}%"
            print(
                f"{variant.label:32} {files[0].name:24} {len(ids):6} tokens {found:9.4f} {rise}", flush=True
            )


if __name__ == "__main__":
    main()
