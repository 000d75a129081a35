"""Fixture `tiny`: a model with recurrent states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.integration.conftest import Oracle
from tests.unit.tiny import VOCAB


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    """Two delta nets and two attention layers; weights large enough that logits differ clearly."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.5,
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen3_5ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("tiny-qwen3.5")
    model.save_pretrained(folder)
    return folder, Oracle(model)
