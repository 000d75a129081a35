from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

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
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return folder, Oracle(save_tiny_llama(folder))


@pytest.fixture(scope="session")
def folder(tiny_llama: tuple[Path, Oracle]) -> Path:
    return tiny_llama[0]


@pytest.fixture(scope="session")
def oracle(tiny_llama: tuple[Path, Oracle]) -> Oracle:
    return tiny_llama[1]
