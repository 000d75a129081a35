from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.faults.support.small_model import SmallModel, save_small_model
from tests.unit.tiny import save_tiny_llama


class Oracle:
    """What transformers generates, greedily and without a cache. Answers are kept: tests share prompts."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self._answers: dict[tuple[int, ...], list[int]] = {}

    @torch.no_grad()
    def __call__(self, prompt: list[int], count: int) -> list[int]:
        answer = self._answers.setdefault(tuple(prompt), [])
        while len(answer) < count:
            logits = self.model(torch.tensor([[*prompt, *answer]])).logits[:, -1]
            answer.append(int(logits.argmax(-1)))
        return answer[:count]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return folder, Oracle(save_tiny_llama(folder))


@pytest.fixture(scope="module")
def folder(tiny: tuple[Path, Oracle]) -> Path:
    """Folder of the model; a test module with another one defines `tiny` anew."""
    return tiny[0]


@pytest.fixture(scope="module")
def oracle(tiny: tuple[Path, Oracle]) -> Oracle:
    return tiny[1]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("small"))
