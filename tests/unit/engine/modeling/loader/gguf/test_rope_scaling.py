"""Scalings of rotations come along in config.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import LlamaConfig, LlamaForCausalLM

from engine.model_config.errors import UnsupportedModel
from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention
from tests.unit.engine.modeling.loader.gguf.tiny_files import (
    MODELS,
    TINY,
    converted,
    write,
)


def test_linear_rope_scaling_comes_along_and_others_are_refused(tmp_path: Path) -> None:
    def scaled(kind: str) -> Callable[[GGUFWriter], None]:
        def add(writer: GGUFWriter) -> None:
            writer.add_string("llama.rope.scaling.type", kind)
            writer.add_rope_scaling_factor(4.0)

        return add

    write(tmp_path / "linear.gguf", "llama", MODELS["llama"](), extra=scaled("linear"))
    write(tmp_path / "longrope.gguf", "llama", MODELS["llama"](), extra=scaled("longrope"))

    rope = load_model(converted(tmp_path / "linear.gguf")).spec.rope
    assert rope is not None
    assert rope.factor == 4.0
    with pytest.raises(UnsupportedModel, match="short_factor"):
        converted(tmp_path / "longrope.gguf")


def test_llama3_scaling_comes_along_as_divisors_of_frequencies(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = LlamaForCausalLM(LlamaConfig(**TINY, rope_parameters=scaling)).eval()
    scaled = model.model.rotary_emb.inv_freq.numpy()
    plain = LlamaForCausalLM(LlamaConfig(**TINY)).model.rotary_emb.inv_freq.numpy()
    divisors = (plain / scaled).astype(np.float32)
    assert divisors.max() > 7
    path = tmp_path / "model.gguf"
    write(path, "llama", model, extra=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))

    ours = load_model(converted(path))
    ids = torch.arange(96)
    with torch.inference_mode():
        logits = ours.logits(ours(ids, torch.arange(96), DenseAttention(ours)))
        torch.testing.assert_close(logits, model(ids[None]).logits[0], atol=1e-5, rtol=1e-5)
