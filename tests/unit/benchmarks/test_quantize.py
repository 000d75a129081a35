"""Checkpoints that benchmarks.checkpoints.quantize writes are what it has computed with."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.checkpoints import calibration, grids, quantize, texts
from benchmarks.checkpoints.gptq import gptq
from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention


def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.2)).requires_grad_(False).eval()


INT4 = partial(grids.integers, group=32, symmetric=False)


@pytest.mark.parametrize("method", ["round", "gptq"])
@pytest.mark.parametrize(("format", "symmetric"), [("fp8", True), ("int4", True), ("int4", False)])
def test_the_checkpoint_has_the_logits_of_the_model_that_was_quantized(
    format: str, symmetric: bool, method: str, tmp_path: Path
) -> None:
    model = random_llama()
    integers = partial(grids.integers, group=32, symmetric=symmetric)
    ids = torch.randint(64, (4, 50))

    grid_of = grids.floats if format == "fp8" else integers
    matrices = quantize.quantize(model, ids, grid_of, rounding=method == "round")

    save_file(quantize.tensors_of(model, matrices), tmp_path / "model.safetensors")
    config = quantize.quantization_config(format, 32, symmetric=symmetric)
    whole = model.config.to_dict() | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    read = load_model(tmp_path)
    with torch.inference_mode():
        logits = read.logits(read(ids[0], torch.arange(50), DenseAttention(read)))
        torch.testing.assert_close(logits, model(ids[:1]).logits[0], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("grid_of", [grids.floats, INT4])
def test_products_of_gptq_are_nearer_to_those_of_the_weights_than_rounded_ones(
    grid_of: quantize.GridOf,
) -> None:
    torch.manual_seed(0)
    weight, inputs = torch.randn(48, 64), torch.randn(500, 64) @ torch.randn(64, 64)
    moments = inputs.t() @ inputs
    grid = grid_of(weight, moments)

    rounded, chosen = (
        float((inputs @ (grid.dense(codes) - weight).t()).norm())
        for codes in (grid.all_codes(weight), gptq(weight, moments, grid))
    )

    assert chosen < 0.85 * rounded


def test_a_model_by_gptq_is_nearer_to_the_one_that_was_quantized_than_by_rounding() -> None:
    model = random_llama()
    ids = torch.randint(64, (16, 64))
    with torch.inference_mode():
        exact = model.model(ids).last_hidden_state
    errors = []
    for rounding in (True, False):
        quantized = random_llama()
        quantize.quantize(quantized, ids, INT4, rounding=rounding)
        with torch.inference_mode():
            errors.append(float((quantized.model(ids).last_hidden_state - exact).norm() / exact.norm()))

    assert errors[1] < 0.8 * errors[0]


def test_no_text_with_a_passage_of_another_one_calibrates() -> None:
    ids, unlike = list(range(100)), [*range(200, 220), *range(43, 55), 7]

    found = calibration.texts_of(ids, 20, unlike)

    assert sorted(found[:, 0].tolist()) == [0, 20, 60, 80]


def test_a_file_of_chats_may_break_off(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]
    file = tmp_path / "chats.json"
    file.write_text(json.dumps([{"id": "0", "conversations": turns}] * 2, indent=2)[:-40])

    assert list(texts.chats(file)) == [
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n"
    ]
