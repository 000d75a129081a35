"""What benchmarks.checkpoints.perplexity computes, and of which weights."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.checkpoints.perplexity import Variant, perplexity


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1)).save_pretrained(
        tmp_path
    )
    return tmp_path


@torch.inference_mode()
def test_it_is_that_of_transformers_within_windows(folder: Path) -> None:
    ids = torch.randint(64, (50,))
    oracle = LlamaForCausalLM.from_pretrained(folder)
    windows = [ids[:20], ids[20:40], ids[40:]]
    losses = [
        functional.cross_entropy(oracle(w[None]).logits[0, :-1], w[1:], reduction="sum") for w in windows
    ]

    found = perplexity(Variant(str(folder), "float32").load("cpu"), ids, window=20)

    assert found == pytest.approx(math.exp(sum(losses) / 47), rel=1e-4)


def test_a_model_without_integers_is_not_measured_as_packed(folder: Path) -> None:
    with pytest.raises(SystemExit, match="no kernel multiplies its integers"):
        Variant(str(folder), "float32", packed=True).load("cpu")
