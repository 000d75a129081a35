"""Checkpoints that benchmarks.checkpoints.quantize writes are what it has computed with."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.checkpoints import quantize
from engine.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention


def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.2)).requires_grad_(False).eval()


@pytest.mark.parametrize("method", ["gptq", "round"])
@pytest.mark.parametrize(("format", "symmetric"), [("fp8", True), ("int4", True), ("int4", False)])
@torch.inference_mode()
def test_the_checkpoint_has_the_logits_of_the_model_that_was_quantized(
    format: str, symmetric: bool, method: str, tmp_path: Path
) -> None:
    model = random_llama()
    integers = partial(quantize.integers, group=32, symmetric=symmetric)
    ids = torch.randint(64, (4, 50))

    tensors = quantize.quantize(model, ids, method, quantize.floats if format == "fp8" else integers)

    quantized = {name.rpartition(".")[0] for name in tensors}
    left = {name: v for name, v in model.state_dict().items() if name.rpartition(".")[0] not in quantized}
    save_file(
        {name: value.contiguous() for name, value in (left | tensors).items()}, tmp_path / "model.safetensors"
    )
    config = quantize.quantization_config(format, 32, symmetric=symmetric)
    whole = model.config.to_dict() | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    read = load_model(tmp_path)
    logits = read.logits(read(ids[0], torch.arange(50), DenseAttention(read)))
    torch.testing.assert_close(logits, model(ids[:1]).logits[0], atol=1e-3, rtol=1e-3)


def test_fitted_scales_give_products_nearer_to_those_of_the_weights() -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(48, 64), torch.randn(500, 64) @ torch.randn(64, 64)
    moments = inputs.t() @ inputs
    grid = quantize.integers(weight, moments, 32, symmetric=False)
    errors = []
    for method in (quantize.rounded, quantize.gptq):
        codes = method(weight, moments, grid)
        fitted = grid.fitted(weight, codes, moments)
        errors += [float((inputs @ (one.dense(codes) - weight).t()).norm()) for one in (grid, fitted)]

    assert errors[3] < errors[2] < errors[1] < errors[0]
