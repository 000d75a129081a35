"""Vision models as GPUs run them, against the modules of transformers: segments in one call, wider MLPs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.media import segments
from engine.media.tower import Tower, attend_in_segments, pad_mlps
from engine.model_config.model_spec import ModelSpec
from tests.unit.engine.media.vlms import FAMILIES


@pytest.mark.parametrize("bounds", [[0, 30], [0, 4, 8, 8, 15, 19, 30], [0, 10, 20, 30]])
def test_each_segment_attends_to_itself(bounds: list[int]) -> None:
    query, key, value = torch.randn(3, 1, 2, 30, 8, generator=torch.Generator().manual_seed(0)).unbind()
    apart = [
        functional.scaled_dot_product_attention(*(x[:, :, a:b] for x in (query, key, value)), scale=0.3)
        for a, b in pairwise(bounds)
    ]
    ends = torch.tensor(bounds, dtype=torch.int32)
    for _ in range(2):  # the second time with the groups of the first
        found, _ = segments.in_segments(
            torch.nn.Identity(), query, key, value, scaling=0.3, cu_seq_lens_q=ends
        )
        torch.testing.assert_close(found, torch.cat(apart, 2).transpose(1, 2))


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3-vl", "qwen3.5"])
def test_vision_models_of_segments_make_one_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[name]
    family.save(tmp_path)
    vision = ModelSpec.from_folder(tmp_path).vision
    assert vision is not None
    device = torch.device("cpu")
    tower = Tower(tmp_path, vision, device=device, dtype=torch.float32, dummy_seed=None)
    images = [image.at(0) for image in family.images(3)]
    expected = [tower.rows(image) for image in images]
    calls = []
    grouped = segments._groups_of
    monkeypatch.setattr(segments, "_groups_of", lambda ends: calls.append(len(ends)) or grouped(ends))
    attend_in_segments(tower._model)
    for image, rows in zip(images, expected, strict=True):
        torch.testing.assert_close(tower.rows(image), rows)
    assert calls
    assert (max(calls) > 2) == (name == "qwen2.5-vl"), "windows"


def test_other_vision_models_stay_as_they_are(tmp_path: Path) -> None:
    FAMILIES["smolvlm"].save(tmp_path)
    vision = ModelSpec.from_folder(tmp_path).vision
    assert vision is not None
    tower = Tower(tmp_path, vision, device=torch.device("cpu"), dtype=torch.float32, dummy_seed=None)
    attend_in_segments(tower._model)
    names = {
        str(part.config._attn_implementation) for part in tower._model.children() if hasattr(part, "config")
    }
    assert segments.NAME not in names


def test_wider_mlps_compute_the_same(tmp_path: Path) -> None:
    FAMILIES["qwen2.5-vl"].save(tmp_path)
    vision = ModelSpec.from_folder(tmp_path).vision
    assert vision is not None
    tower = Tower(tmp_path, vision, device=torch.device("cpu"), dtype=torch.float32, dummy_seed=None)
    image = FAMILIES["qwen2.5-vl"].images(1)[0].at(0)
    before = tower.rows(image)
    pad_mlps(tower._model)
    (width,) = {
        module.gate_proj.out_features for module in tower._model.modules() if hasattr(module, "gate_proj")
    }
    assert width == 64
    torch.testing.assert_close(tower.rows(image), before)
