from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from tests.unit.tiny import save_tiny_llama


class Oracle:
    """What transformers generates, greedily and without a cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    @torch.no_grad()
    def __call__(self, prompt: list[int], count: int) -> list[int]:
        tokens = torch.tensor([prompt])
        for _ in range(count):
            logits = self.model(tokens).logits[:, -1]
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        ids: list[int] = tokens[0, len(prompt) :].tolist()
        return ids


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
