"""Equal weights have equal identities, under any path and name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.executor.runner import ModelRunner
from engine.modeling.loader.weights_identity import weights_identity
from kv_transfer import LayoutMismatch, Peer
from tests.unit.tiny import make_config, save_tiny_llama
from worker.kv_pool_access import layout_of, memory_of

Tensors = dict[str, torch.Tensor]
EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "model"
    save_tiny_llama(path)
    return path


def copy(folder: Path, target: Path, change: Callable[[Tensors], object] = lambda tensors: None) -> Path:
    """The same model in another folder, but for `change`."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    target.mkdir(parents=True)
    save_file(tensors, target / "model.safetensors", metadata={"saved": "again"})
    (target / "config.json").write_bytes((folder / "config.json").read_bytes())
    return target


def test_the_same_weights_under_another_path_have_the_same_identity(folder: Path, tmp_path: Path) -> None:
    assert weights_identity(copy(folder, tmp_path / "there")) == weights_identity(folder)


def test_the_same_weights_in_several_files_have_the_same_identity(folder: Path, tmp_path: Path) -> None:
    target = copy(folder, tmp_path / "sharded")
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    weight_map = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, target / file)
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert weights_identity(target) == weights_identity(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors["model.norm.weight"].add_(0.1),
        lambda tensors: tensors[EMBEDDINGS][-1].zero_(),
        lambda tensors: tensors.update({EMBEDDINGS: tensors[EMBEDDINGS].bfloat16()}),
        lambda tensors: tensors.update({"lm_head.weight": tensors[EMBEDDINGS].clone()}),
    ],
)
def test_another_revision_has_another_identity(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], object]
) -> None:
    assert weights_identity(copy(folder, tmp_path / "model", change)) != weights_identity(folder)


@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_a_large_tensor_is_sampled_at_its_begin_middle_and_end(
    folder: Path, tmp_path: Path, place: float
) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors["large"] = torch.zeros(100_000)

    def change(tensors: Tensors) -> None:
        enlarge(tensors)
        tensors["large"][round(place * 99_999)] = 1.0

    before = weights_identity(copy(folder, tmp_path / "before", enlarge))
    assert weights_identity(copy(folder, tmp_path / "after", change)) != before


@pytest.mark.parametrize(
    ("field", "value", "matters"),
    [
        ("rms_norm_eps", 0.5, True),
        ("_name_or_path", "/elsewhere", False),
        ("transformers_version", "9", False),
    ],
)
def test_of_the_config_everything_counts_but_where_it_came_from(
    folder: Path, tmp_path: Path, field: str, value: object, matters: bool
) -> None:
    target = copy(folder, tmp_path / "model")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({field: None, **config} | {field: value}))
    assert (weights_identity(target) != weights_identity(folder)) == matters


def test_dummy_weights_are_known_by_their_seed(folder: Path) -> None:
    identities = {weights_identity(folder, "dummy", seed) for seed in (0, 1)} | {weights_identity(folder)}
    assert len(identities) == 3
    assert weights_identity(folder, "dummy", 1) in identities


def test_two_revisions_under_one_name_refuse_each_other_when_they_meet(folder: Path, tmp_path: Path) -> None:
    def revise(tensors: Tensors) -> None:
        tensors[EMBEDDINGS] *= 1.01

    elsewhere = copy(folder, tmp_path / "there" / folder.name)
    revised = copy(folder, tmp_path / "revised" / folder.name, revise)
    here, same, other = (ModelRunner(make_config(path)) for path in (folder, elsewhere, revised))
    peers = [Peer.of("p", 1, b"", memory_of(runner.kv), layout_of(runner)) for runner in (same, other)]
    peers[0].require(layout_of(here))
    with pytest.raises(LayoutMismatch, match="revision"):
        peers[1].require(layout_of(here))
