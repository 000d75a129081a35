"""A model that is served like any other and answers at once: random weights, a tokenizer, a chat template."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from router.api.generation.text.tokenizer import Tokenizer
from tests.unit.router.api.generation.text.tokenizers import byte_level

MAX_LEN = 2048
_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.5,
}
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)


@dataclass(frozen=True)
class Question:
    """What a client asks: `seed` None is greedy."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int | None = None

    @property
    def temperature(self) -> float:
        return 0.0 if self.seed is None else 1.0


@dataclass(frozen=True)
class SmallModel:
    """The model's folder, and what transformers says that the model says."""

    folder: Path
    model: PreTrainedModel
    tokenizer: Tokenizer
    _answers: dict[Question, list[int]] = field(default_factory=dict, compare=False)

    def question(self, seed: int, *, length: int, max_tokens: int, sampled: bool = False) -> Question:
        draw = random.Random(seed)
        prompt = tuple(draw.randrange(2, self.model.config.vocab_size) for _ in range(length))
        return Question(prompt, max_tokens, seed if sampled else None)

    def answer(self, question: Question) -> list[int]:
        """Greedy, whatever comes: requests to compare with it must say ignore_eos."""
        if question not in self._answers:
            self._answers[question] = self._generate(question)
        return self._answers[question]

    @torch.inference_mode()
    def _generate(self, question: Question) -> list[int]:
        assert question.seed is None
        tokens = torch.tensor([question.prompt])
        output: Any = self.model.generate(  # type: ignore[operator]
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=question.max_tokens,
            do_sample=False,
            eos_token_id=None,
        )
        ids: list[int] = output[0, len(question.prompt) :].tolist()
        return ids

    def says(self, question: Question, answer: Sequence[int]) -> bool:
        """Whether `answer` is what it says greedily: in one pass, where `answer` takes one a token."""
        assert question.seed is None
        most_likely = self._logits(question, answer).argmax(-1).tolist()
        return len(answer) == question.max_tokens and most_likely == list(answer)

    def margin(self, question: Question) -> float:
        """Between the two largest logits, where they are closest in the answer to `question`."""
        first, second = self._logits(question, self.answer(question)).topk(2).values.unbind(-1)
        return float((first - second).min())

    @torch.inference_mode()
    def _logits(self, question: Question, answer: Sequence[int]) -> Tensor:
        """[tokens of the answer, vocabulary]: those that choose each of them."""
        logits: Tensor = self.model(torch.tensor([[*question.prompt, *answer]])).logits[0]
        return logits[len(question.prompt) - 1 : -1]

    def text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)


def _llama(**fields: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**fields))


def save_small_model(
    folder: Path, family: Callable[..., PreTrainedModel] = _llama, **shape: Any
) -> SmallModel:
    """Two layers; weights so large that no two logits are nearly alike.

    `family`: makes a model of the fields of its configuration, those of `shape` among them.
    """
    torch.manual_seed(0)
    backend = byte_level()
    vocab_size = backend.get_vocab_size(with_added_tokens=True)
    model = family(
        **{**_SHAPE, **shape},
        vocab_size=vocab_size,
        max_position_embeddings=MAX_LEN,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    ).eval()
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": _CHAT_TEMPLATE}))
    return SmallModel(folder, model, Tokenizer.load(folder, vocab_size=vocab_size))
