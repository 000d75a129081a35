"""Qwen3.5's published checkpoints stack the matrices of a layer's experts."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.modeling.loader.model_loader import load_model
from tests.unit.engine.modeling.models.references import EXPERTS, logits, reference

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


@torch.inference_mode()
def test_a_checkpoint_with_stacked_experts_is_the_same_model(tmp_path: Path) -> None:
    oracle = reference("qwen3.5 with experts")
    oracle.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    apart = {
        match.groups(): tensors.pop(match[0]) for match in map(_EXPERT.fullmatch, list(tensors)) if match
    }
    for block in {block for block, _, _ in apart}:
        gate, up, down = (
            torch.stack([apart[block, str(expert), name] for expert in range(EXPERTS["num_experts"])])
            for name in ("gate", "up", "down")
        )
        tensors |= {f"{block}.gate_up_proj": torch.cat((gate, up), dim=1), f"{block}.down_proj": down}
    assert any(name.endswith(".experts.gate_up_proj") for name in tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    ids = torch.arange(60)

    ours = logits(load_model(tmp_path), ids)

    torch.testing.assert_close(ours, oracle(ids[None]).logits[0], atol=1e-4, rtol=1e-4)
