"""Vision models that threads of a process load at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from transformers import PreTrainedModel

from engine.media.tower import Tower
from engine.model_config.model_spec import ModelSpec
from tests.unit.engine.media.vlms import FAMILIES

THREADS = 4


def test_classes_of_transformers_are_as_they_were(tmp_path: Path) -> None:
    """It takes functions away from them while it loads a model."""
    FAMILIES["smolvlm"].save(tmp_path)
    vision = ModelSpec.from_folder(tmp_path).vision
    assert vision is not None
    before = PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.nn.init.normal_

    def load(number: int) -> None:
        seed = None if number % 2 else number
        Tower(tmp_path, vision, device=torch.device("cpu"), dtype=torch.float32, dummy_seed=seed)

    with ThreadPoolExecutor(THREADS) as threads:
        assert [*threads.map(load, range(4 * THREADS))] == [None] * 4 * THREADS
    assert (PreTrainedModel.tie_weights, PreTrainedModel.init_weights, torch.nn.init.normal_) == before
