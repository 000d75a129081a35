"""What is read from a PEFT folder, and what is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.adapters.peft_folder import read_adapter
from engine.errors import AdapterRefused
from tests.unit.engine.adapters.peft_oracle import save_adapter
from tests.unit.tiny import save_tiny_llama

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    save_tiny_llama(tmp_path / "base")
    return save_adapter(tmp_path / "base", tmp_path / "adapter", 1, target_modules=["q_proj", "v_proj"])


def configure(adapter: Path, **changes: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(adapter: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def test_an_adapter_has_its_pairs_by_module_with_their_scale(adapter: Path) -> None:
    stored = read_adapter("style", adapter)
    assert (stored.rank, stored.targets, len(stored.pairs)) == (4, ("q_proj", "v_proj"), 4)
    tensors = load_file(adapter / "adapter_model.safetensors")
    pair = stored.pairs["model.layers.0.self_attn.q_proj"]
    assert torch.equal(pair.a, tensors[f"{Q}.lora_A.weight"])
    assert torch.equal(pair.b, 2.0 * tensors[f"{Q}.lora_B.weight"])


def test_the_digest_is_of_the_content_and_not_of_name_or_path(adapter: Path, tmp_path: Path) -> None:
    before = read_adapter("style", adapter).digest
    adapter.rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert read_adapter("other", moved).digest == before
    change(moved, lambda tensors: tensors[f"{Q}.lora_B.weight"][0, 0].add_(1e-3))
    changed = read_adapter("style", moved).digest
    found = {before, changed}
    for alpha in (8, 9):  # of the same length
        configure(moved, lora_alpha=alpha)
        found.add(read_adapter("style", moved).digest)
    assert len(found) == 4


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"use_dora": True}, "DoRA is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "experts"),
        ({"alora_invocation_tokens": "<ask>"}, "alora_invocation_tokens in adapter_config.json is no list"),
        ({"bias": "all"}, "trained biases are not supported"),
        ({"peft_type": "IA3"}, "peft_type IA3 is not supported"),
        ({"init_lora_weights": "pissa"}, "changes the base model"),
        ({"target_modules": ["q_proj"]}, r"v_proj has tensors, but target_modules does not name it"),
        ({"target_modules": r".*\.q_proj"}, r"v_proj has tensors, but target_modules does not name it"),
        ({"r": 8}, "matrices of rank 4, but adapter_config.json says 8"),
    ],
    ids=str,
)
def test_more_than_pairs_of_matrices_is_refused_by_name(
    adapter: Path, changes: dict[str, Any], reason: str
) -> None:
    configure(adapter, **changes)
    with pytest.raises(AdapterRefused, match=reason):
        read_adapter("style", adapter)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda tensors: tensors.pop(f"{Q}.lora_B.weight"), "q_proj has half a pair: lora_A alone"),
        (
            lambda tensors: tensors.update({f"{Q}.lora_magnitude_vector": torch.ones(4)}),
            "is no half of a pair",
        ),
        (
            lambda tensors: tensors.update({f"{Q}.lora_B.weight": torch.ones(32, 3)}),
            r"matrices of shapes \[4, 32\] and \[32, 3\]",
        ),
        (lambda tensors: tensors[f"{Q}.lora_A.weight"].fill_(torch.nan), "numbers that are not finite"),
        (lambda tensors: tensors.clear(), "it has no tensors"),
    ],
)
def test_tensors_that_do_not_pair_are_refused(
    adapter: Path, edit: Callable[[dict[str, torch.Tensor]], object], reason: str
) -> None:
    change(adapter, edit)
    with pytest.raises(AdapterRefused, match=reason):
        read_adapter("style", adapter)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_that_are_damaged_or_absent_are_refused(adapter: Path, name: str) -> None:
    (adapter / name).write_bytes(b"{damaged")
    with pytest.raises(AdapterRefused, match="cannot be served"):
        read_adapter("style", adapter)
    (adapter / name).unlink()
    with pytest.raises(AdapterRefused, match="cannot be read"):
        read_adapter("style", adapter)
