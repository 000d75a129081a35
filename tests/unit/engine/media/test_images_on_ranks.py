"""Images of a model whose weights are shared by two ranks, against transformers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from engine.core.weights import NewWeights
from engine.errors import RefillRefused
from engine.executor.runner import ModelRunner
from engine.loop.engine import Engine
from engine.parallel import StepChannel, TorchCommunicator
from tests.engine_config import engine_config
from tests.ranks import together
from tests.unit.engine.media.test_images import answers
from tests.unit.engine.media.vlms import FAMILIES, Part
from worker.tensor_parallel.rank_process import follow

T = TypeVar("T")
SPLIT = ["smolvlm", "gemma3", "gemma4 with whole images", "qwen2.5-vl", "qwen3-vl", "mistral3", "internvl"]


def on_two_ranks(folder: Path, use: Callable[[Engine], T], **settings: object) -> T:
    """What `use` returns with the engine of rank 0."""
    base = {"page_size": 4, "num_pages": 128, "max_model_len": 256, "max_running_requests": 8}
    config = engine_config(model_path=folder, tensor_parallel_size=2, **(base | settings))

    def on_rank(ranks: TorchCommunicator) -> T | None:
        runner = ModelRunner(config, communicator=ranks)
        if not ranks.shard.is_first_rank:
            assert runner.media is None
            follow(StepChannel(ranks), runner)
            return None
        engine = Engine(config, runner=runner)
        try:
            return use(engine)
        finally:
            engine.close()

    found = together(2, on_rank)[0]
    assert found is not None
    return found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", SPLIT)
def test_answers_are_those_of_transformers(name: str, overlap: bool, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = family.save(tmp_path)
    red, blue = family.images(2)
    prompts: list[list[Part]] = [
        [[3, 4, 5], red, [6, 7, 8, 9], blue, [10]],
        [[3, 4, 5], blue, [6, 7]],
        [[8] * 20],
        [red, blue, red, [11]],
    ]
    found = on_two_ranks(
        tmp_path,
        lambda engine: answers(engine, *prompts),
        chunk_budget=max(7, family.least),
        page_aligned_chunks=False,
        overlap=overlap,
    )
    assert found == [family.expected(model, parts, 8) for parts in prompts]


def test_new_weights_are_those_of_the_vision_model_too_or_of_nothing(tmp_path: Path) -> None:
    family = FAMILIES["smolvlm"]
    family.save(tmp_path / "old")
    new = family.save(tmp_path / "new", seed=1)
    shutil.copytree(tmp_path / "old", tmp_path / "none")
    (tmp_path / "none" / "model.safetensors").unlink()
    parts: list[Part] = [[3, 4, 5], family.images(1)[0], [6, 7]]

    def use(engine: Engine) -> list[list[int]]:
        before = answers(engine, parts)
        with pytest.raises(RefillRefused):
            engine.refill(NewWeights(tmp_path / "none"))
        assert answers(engine, parts) == before
        engine.refill(NewWeights(tmp_path / "new"))
        return answers(engine, parts)

    assert on_two_ranks(tmp_path / "old", use) == [family.expected(new, parts, 8)]
