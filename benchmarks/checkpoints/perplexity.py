"""Perplexity of a model on a text, as it is and with other formats of its weights.

python -m benchmarks.checkpoints.perplexity --model smollm2 --quantization fp8
python -m benchmarks.checkpoints.perplexity --model /models/8B /models/8B-AWQ --device cuda
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from benchmarks.lib.command import command
from benchmarks.lib.model_folder import model_folder
from engine.layers.ops.ops import Rotation
from engine.loader.model_loader import load_model
from engine.models.base import CausalLM

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


def main() -> None:
    parser = command("checkpoints.perplexity", __doc__)
    parser.add_argument("--model", nargs="+", default=["smollm2"])
    parser.add_argument(
        "--quantization", nargs="*", default=[], help="formats to try besides the model's own"
    )
    parser.add_argument("--text", type=Path, nargs="*", help="default: this repository's documentation")
    parser.add_argument("--tokens", type=int, default=50_000)
    parser.add_argument("--window", type=int, default=1024, metavar="TOKENS")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    files = options.text or sorted((_ROOT / "docs").glob("*.md"))
    text = "\n\n".join(file.read_text() for file in files)
    first: float | None = None
    for name in options.model:
        folder = model_folder(name)
        ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(text)["input_ids"][: options.tokens])
        for quantization in [None, *options.quantization]:
            model = load_model(folder, device=options.device, dtype=options.dtype, quantization=quantization)
            found = perplexity(model, ids.to(options.device), options.window)
            first = first or found
            label = f"{name} {quantization or 'as it is'}"
            print(f"{label:40} {found:8.4f}  {100 * (found / first - 1):+.2f}%  ({len(ids)} tokens)")


if __name__ == "__main__":
    main()
