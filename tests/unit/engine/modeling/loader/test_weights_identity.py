"""Equal weights have equal identities, under any path and name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.executor.runner import ModelRunner
from engine.model_config.errors import WeightsError
from engine.model_config.model_spec import ModelSpec
from engine.modeling.loader import tensor_digests
from engine.modeling.loader.weights_identity import FilledCheckpoint, served_shape, shape_identity
from kv_transfer import LayoutMismatch, Peer
from rpc.baton.v1 import sampling_pb2
from tests.unit.tiny import make_config, save_tiny_llama
from worker.kv_pool_access import layout_of, memory_of
from worker.session.jobs import Job

Tensors = dict[str, torch.Tensor]
EMBEDDINGS = "model.embed_tokens.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "model"
    save_tiny_llama(path)
    return path


def weights_identity(folder: Path, load_format: str = "auto", seed: int = 0) -> tuple[str, str]:
    return shape_identity(folder), FilledCheckpoint(folder, load_format, seed).digest()


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
        lambda tensors: tensors.update({"renamed": tensors.pop("model.norm.weight")}),
        lambda tensors: tensors.update({EMBEDDINGS: tensors[EMBEDDINGS].reshape(-1)}),
        lambda tensors: tensors.update({EMBEDDINGS: tensors[EMBEDDINGS].view(torch.int32)}),
    ],
    ids=["a value", "a row", "rounded", "a tensor more", "a name", "a shape", "a type of the same bytes"],
)
def test_another_revision_has_another_identity(
    folder: Path, tmp_path: Path, change: Callable[[Tensors], object]
) -> None:
    assert weights_identity(copy(folder, tmp_path / "model", change)) != weights_identity(folder)


@pytest.mark.parametrize("place", [0, 4_000, 1_500_000, 2_999_999])
def test_a_change_of_one_value_of_a_large_tensor_is_another_identity(
    folder: Path, tmp_path: Path, place: int
) -> None:
    def enlarge(tensors: Tensors) -> None:
        tensors["large"] = torch.zeros(3_000_000)  # several blocks

    def change(tensors: Tensors) -> None:
        enlarge(tensors)
        tensors["large"][place] = 1.0

    before = weights_identity(copy(folder, tmp_path / "before", enlarge))
    assert weights_identity(copy(folder, tmp_path / "after", change)) != before


def test_digests_of_large_files_are_kept_until_the_file_changes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tensor_digests, "_LARGE", 0)
    hashed: list[int] = []
    of_block = tensor_digests._of_block

    def counted(file: Path, end: int, begin: int) -> bytes:
        hashed.append(begin)
        return of_block(file, end, begin)

    monkeypatch.setattr(tensor_digests, "_of_block", counted)

    first = weights_identity(folder)
    assert hashed
    hashed.clear()
    assert weights_identity(folder) == first
    assert not hashed

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_identity(folder) != first
    assert hashed


def test_a_file_that_changed_after_it_was_loaded_has_no_identity(folder: Path) -> None:
    checkpoint = FilledCheckpoint(folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes())

    with pytest.raises(WeightsError, match=r"model\.safetensors has changed since it was loaded"):
        checkpoint.digest()


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


@pytest.mark.parametrize(
    ("quantization", "long_angles"), [("fp8", False), ("int8", False), (None, True), ("fp8", True)]
)
def test_the_shape_is_also_of_what_is_done_at_load(
    folder: Path, quantization: str | None, long_angles: bool
) -> None:
    assert shape_identity(folder, quantization, long_angles=long_angles) != shape_identity(folder)
    assert shape_identity(folder, "fp8") != shape_identity(folder, "int8")


def test_the_shape_of_a_served_model_is_of_its_settings_and_angles(folder: Path) -> None:
    plain, spec = make_config(folder), ModelSpec.from_folder(folder)
    assert spec.rope is not None
    long = replace(spec, rope=replace(spec.rope, factors=(2.0,), long_factors=(2.0,)))
    shapes = {
        served_shape(config, each)
        for config in (plain, replace(plain, quantization="fp8"))
        for each in (spec, long)
    }
    assert len(shapes) == 4
    assert served_shape(plain, spec) == shape_identity(folder)


def test_dummy_weights_are_known_by_their_seed(folder: Path) -> None:
    identities = {weights_identity(folder, "dummy", seed) for seed in (0, 1)} | {weights_identity(folder)}
    assert len(identities) == 3
    assert weights_identity(folder, "dummy", 1) in identities


def test_handoffs_between_two_revisions_of_a_model_fail(folder: Path, tmp_path: Path) -> None:
    def revise(tensors: Tensors) -> None:
        tensors[EMBEDDINGS][7, 3] += 1e-3

    elsewhere = copy(folder, tmp_path / "there" / folder.name)
    revised = copy(folder, tmp_path / "revised" / folder.name, revise)
    here, same, other = (ModelRunner(make_config(path)) for path in (folder, elsewhere, revised))
    assert layout_of(here).hash == layout_of(same).hash == layout_of(other).hash

    def digest(runner: ModelRunner) -> int:
        request = Request(1, [3, 4, 5], SamplingParams(max_tokens=1))
        sampling = sampling_pb2.SamplingParams()
        weights = str(runner.weights)
        return Job(request, cast(Any, None), 0.0, 0.0, sampling, weights).digest(3)

    assert digest(here) == digest(same) != digest(other)


def test_another_shape_refuses_to_exchange_kv(folder: Path, tmp_path: Path) -> None:
    changed = copy(folder, tmp_path / "model")
    config = json.loads((changed / "config.json").read_text())
    (changed / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    here, other = (ModelRunner(make_config(path)) for path in (folder, changed))
    peer = Peer.of("p", 1, b"", memory_of(other.kv), layout_of(other))
    with pytest.raises(LayoutMismatch, match="same model"):
        peer.require(layout_of(here))
