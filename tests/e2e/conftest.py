"""The real small model, and what transformers says of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import xxhash
from transformers import AutoTokenizer

from engine.modeling.loader.checkpoint import resolve
from tests.smollm2 import of_transformers, packaged_gguf

NUM_TOKENS = 32

_STORY = (
    "The lighthouse keeper wrote down the weather every morning, and every evening he read what he had "
    "written the year before. Ships passed far out, going north with timber and south with wine. "
)

TEXTS = {
    "one token": "The",
    "a question": "What is the capital of France, and why?",
    "French": "Le chat dort au soleil. Expliquez en français pourquoi les chats dorment autant, "
    "et donnez trois exemples de leur vie quotidienne.",
    "Chinese and Russian": "用简单的话解释什么是光合作用。"
    "Объясните простыми словами, что такое фотосинтез. 🌱",
    "code": "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        yield a\n",
    "300 tokens": _STORY * 8,
    "600 tokens": "Read this log and say what happens next.\n" + _STORY * 16,
    "1000 tokens": "Summarise this diary in one sentence.\n" + _STORY * 28,
}


class Oracle:
    """The prompts of TEXTS as tokens, and transformers' greedy answers to them.

    An answer takes transformers some seconds: it is kept on disk until transformers, torch or the model
    change.
    """

    def __init__(self, folder: Path, cache: pytest.Cache) -> None:
        self._folder = folder
        self._cache = cache
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.prompts = {name: list(self.tokenizer(text)["input_ids"]) for name, text in TEXTS.items()}
        self.prompts["one token"] = self.prompts["one token"][:1]
        self.prompts["1000 tokens"] = self.prompts["1000 tokens"][:1000]

    def answer(self, name: str) -> list[int]:
        """NUM_TOKENS tokens; one that ends the answer is not among them."""
        prompt = self.prompts[name]
        key = repr(
            (
                packaged_gguf().name,
                self._folder.name,
                transformers.__version__,
                torch.__version__,
                NUM_TOKENS,
                prompt,
            )
        )
        place = f"baton/{xxhash.xxh3_64_hexdigest(key.encode())}"
        known: list[int] | None = self._cache.get(place, None)
        if known is None:
            known = greedy(self._model, prompt)
            self._cache.set(place, known)
        return known

    def answers(self, names: Sequence[str]) -> list[list[int]]:
        return [self.answer(name) for name in names]

    def text(self, name: str) -> str:
        """The answer in words."""
        return str(self.tokenizer.decode(self.answer(name), skip_special_tokens=True))

    @cached_property
    def _model(self) -> torch.nn.Module:
        return of_transformers()


@pytest.fixture(autouse=True)
def memory_back() -> Iterator[None]:
    """A worker freezes what exists when it starts (`common.garbage_collection`): right for a process of its
    own. Here, one worker after the other would keep a pool each.
    """
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    return resolve("smollm2").path


@pytest.fixture(scope="session")
def oracle(smollm2: Path, pytestconfig: pytest.Config) -> Oracle:
    return Oracle(smollm2, pytestconfig.cache)


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: Sequence[int]) -> list[int]:
    tokens = torch.tensor([list(prompt)])
    output = model.generate(  # type: ignore[operator]
        tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        do_sample=False,
    )
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids
