"""Checkpoints that benchmarks.checkpoints.quantize writes are what it has computed with."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.checkpoints import gptq, grids, quantize
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
    integers = partial(grids.integers, group=32, symmetric=symmetric)
    ids = torch.randint(64, (4, 50))

    tensors = quantize.quantize(model, ids, method, grids.floats if format == "fp8" else integers)

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


def test_each_step_gives_products_nearer_to_those_of_the_weights() -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(48, 64), torch.randn(500, 64) @ torch.randn(64, 64)
    moments = inputs.t() @ inputs
    grid: grids.Grid = grids.integers(weight, moments, 32, symmetric=False)

    def error(grid: grids.Grid, codes: torch.Tensor) -> float:
        return float((inputs @ (grid.dense(codes) - weight).t()).norm())

    errors = [error(*gptq.rounded(weight, moments, grid))]
    codes = gptq.in_order(weight, moments, grid)
    errors.append(error(grid, codes))
    grid = grid.fitted(weight, codes, moments)
    errors.append(error(grid, codes))
    codes = gptq.descended(weight, codes, moments, grid)
    errors.append(error(grid, codes))

    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == len(errors)


def test_a_model_by_gptq_is_nearer_to_the_one_that_was_quantized_than_by_rounding() -> None:
    model = random_llama()
    ids = torch.randint(64, (16, 64))
    with torch.inference_mode():
        exact = model.model(ids).last_hidden_state
    errors = []
    for method in ("round", "gptq"):
        quantized = random_llama()
        quantize.quantize(quantized, ids, method, partial(grids.integers, group=32, symmetric=False))
        with torch.inference_mode():
            errors.append(float((quantized.model(ids).last_hidden_state - exact).norm() / exact.norm()))

    assert errors[1] < 0.8 * errors[0]
