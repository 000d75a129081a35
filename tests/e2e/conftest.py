"""The real small model, and what transformers says of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers
import xxhash
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.loader.checkpoint import resolve

NUM_TOKENS = 64

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
    "1000 tokens": "Read this log and say what happens next.\n" + _STORY * 26,
    "4000 tokens": "Summarise this diary in one sentence.\n" + _STORY * 104,
}


@dataclass(frozen=True)
class Expected:
    """Prompts and transformers' greedy answers to them, by name."""

    prompts: dict[str, list[int]]
    answers: dict[str, list[int]]


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
def expected(smollm2: Path, pytestconfig: pytest.Config) -> Expected:
    """transformers takes a minute for these: its answers are kept until it, torch or the model changes."""
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    prompts = {name: list(tokenizer(text)["input_ids"]) for name, text in TEXTS.items()}
    prompts["one token"] = prompts["one token"][:1]
    prompts["4000 tokens"] = prompts["4000 tokens"][:4000]
    versions = (smollm2.name, transformers.__version__, torch.__version__, NUM_TOKENS)
    key = xxhash.xxh3_64_hexdigest(repr((versions, prompts)).encode())
    answers = pytestconfig.cache.get(f"baton/{key}", None)
    if answers is None:
        model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
        answers = {name: greedy(model, ids) for name, ids in prompts.items()}
        pytestconfig.cache.set(f"baton/{key}", answers)
    return Expected(prompts, answers)


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
