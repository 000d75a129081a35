"""What quantized weights cost SmolLM2, on this repository's documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer

from engine.modeling.layers.formats.quantized import CodesOnCpu
from engine.modeling.layers.linear import codes
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.ops.ops import Rotation
from engine.modeling.loader.checkpoint import resolve
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM

DOCUMENT = Path(__file__).parents[3] / "docs" / "reliability.md"


class WholeSequence:
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
def perplexity(model: CausalLM, ids: Tensor) -> float:
    model.expect(len(ids))
    hidden = model(ids, torch.arange(len(ids)), WholeSequence(model.part.num_heads))
    return float(functional.cross_entropy(model.logits(hidden[:-1]).float(), ids[1:]).exp())


@pytest.mark.thorough
def test_fp8_weights_change_the_perplexity_by_no_more_than_their_rounding() -> None:
    """Three bits of mantissa round each weight by 2.5% on average; the smallest model feels it most."""
    folder = resolve("smollm2").path
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(DOCUMENT.read_text())["input_ids"][:1024])

    exact, quantized = (
        perplexity(load_model(folder, quantization=quantization), ids) for quantization in (None, "fp8")
    )

    assert quantized == pytest.approx(exact, rel=0.04)


@pytest.mark.thorough
def test_integers_of_a_gguf_file_have_the_perplexity_of_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    if codes.cpu_kernels(torch.float32) is None:
        pytest.skip("this CPU has no kernels for integers")
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)
    folder = resolve("smollm2").path
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(DOCUMENT.read_text())["input_ids"][:512])

    exact, integers = (
        load_model(resolve("smollm2", keep_codes=packed).path, dtype="float32") for packed in (False, True)
    )
    assert any(isinstance(m, Linear) and isinstance(m.method, CodesOnCpu) for m in integers.modules())

    assert perplexity(integers, ids) == pytest.approx(perplexity(exact, ids), rel=1e-4)
