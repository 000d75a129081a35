"""Integers of a GGUF file are kept where they can be, tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import Qwen2Config, Qwen2ForCausalLM

from engine.modeling.layers.linear import codes
from engine.modeling.loader.model_loader import load_model
from engine.modeling.models.base import CausalLM
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    MODELS,
    WIDE,
    converted,
    tensors,
    weights_of,
    write,
)


def of_several_types(name: str) -> Kind:
    """As files of llama.cpp have them, with one layer's keys and another's outputs in types of no codes."""
    kinds = {"token_embd": Kind.Q6_K, "attn_v": Kind.Q6_K, "ffn_down": Kind.Q2_K, "attn_k": Kind.F16}
    kinds |= {"attn_output": Kind.IQ2_XXS} if name.startswith("blk.1.") else {"attn_k": Kind.Q4_K}
    return kinds.get(name.split(".")[-2], Kind.Q4_K)


@torch.inference_mode()
def test_codes_are_kept_tensor_by_tensor(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "model.gguf"
    write(path, "qwen2", Qwen2ForCausalLM(Qwen2Config(**WIDE)), of_several_types)
    values, kept = load_model(converted(path)), load_model(folder := converted(path, keep_codes=True))

    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    apart = [f"model.layers.1.self_attn.{name}_proj" for name in "koqv"]
    assert config == {
        "quant_method": "gguf",
        "group_size": 16,
        "offsets": True,
        "modules_to_not_convert": apart,
    }
    ids = torch.arange(96)
    ours, expected = (
        model.logits(model(ids, torch.arange(96), DenseAttention(model))) for model in (kept, values)
    )
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    assert weights_of(folder) <= 1.2 * path.stat().st_size


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q5_1, Kind.Q8_0])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3moe", "glm4moe", "phi3"])
@torch.inference_mode()
def test_integers_that_are_kept_compute_what_their_values_do(
    architecture: str, kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    write(tmp_path / "model.gguf", architecture, MODELS[architecture](), kind)
    values = load_model(converted(tmp_path / "model.gguf"))
    folder = converted(tmp_path / "model.gguf", keep_codes=True)
    ids = torch.arange(96)

    def logits(model: CausalLM) -> torch.Tensor:
        return model.logits(model(ids, torch.arange(96), DenseAttention(model)))

    for serves in (False, True):
        monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits, serves=serves: serves)
        kept = logits(load_model(folder))
        torch.testing.assert_close(kept, logits(values), atol=1e-5 * serves, rtol=1e-5 * serves)


def test_a_file_with_weights_that_are_no_integers_is_dequantized(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", "llama", MODELS["llama"]())

    folder = converted(tmp_path / "model.gguf", keep_codes=True)

    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    assert "model.layers.0.mlp.up_proj.weight" in dict(tensors(folder))
