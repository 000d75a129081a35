"""Checkpoints of random weights are what loaders expect of their config.json."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.checkpoints import random_weights
from benchmarks.checkpoints.random_weights import write_checkpoint
from engine.model_config.shard import Shard
from engine.modeling.loader.model_loader import load_model
from engine.parallel.communicator import Communicator

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(random_weights, "_FILE_BYTES", 30_000)
    monkeypatch.setattr(random_weights, "_PATTERN_BYTES", 1000)
    write_checkpoint(CONFIG, tmp_path / "model", threads=3)
    return tmp_path / "model"


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_loads_its_part(folder: Path, rank: int) -> None:
    communicator = cast(Communicator, SimpleNamespace(shard=Shard(rank, 2)))

    model = load_model(folder, dtype="bfloat16", communicator=communicator)

    assert all(parameter.isfinite().all() for parameter in model.parameters() if not parameter.is_mkldnn)


def test_files_hold_what_the_index_says_and_finite_values(folder: Path) -> None:
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    files = {path.name: load_file(path) for path in folder.glob("*.safetensors")}

    assert len(files) > 2
    assert {name: file for file, tensors in files.items() for name in tensors} == places
    for tensors in files.values():
        for name, tensor in tensors.items():
            assert tensor.float().isfinite().all(), name
            assert tensor.float().abs().max() < 500, name


def test_values_repeat_over_the_whole_tensor(folder: Path) -> None:
    tensors = {k: v for path in folder.glob("*.safetensors") for k, v in load_file(path).items()}
    codes = tensors["model.layers.2.mlp.gate_proj.weight"].view(torch.uint8).flatten()

    assert torch.equal(codes[:1000], codes[1000:2000])
    assert len(set(codes.tolist())) > 150
