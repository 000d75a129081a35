"""Checkpoints that the library compressed-tensors wrote: scripts/compressed_tensors_fixtures.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.dense_attention import DenseAttention

FOLDERS = sorted(path for path in (Path(__file__).parent / "compressed_tensors").iterdir() if path.is_dir())
IDS = torch.arange(20) * 7 % 32


@pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS])
@torch.inference_mode()
def test_its_checkpoints_are_read_as_it_reads_them(folder: Path) -> None:
    model = load_model(folder)

    logits = model.logits(model(IDS, torch.arange(len(IDS)), DenseAttention(model)))

    expected = load_file(folder / "logits.safetensors")["logits"]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
