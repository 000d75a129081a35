"""The model that comes with Baton, against transformers reading the same GGUF file by itself.

transformers takes ten seconds for that: what needs all of the weights is for `make test-all`. Small files
that exercise the same conversion are in tests/unit/engine/modeling/loader/gguf/test_converter.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from engine.modeling.loader.checkpoint import Checkpoint, resolve
from engine.modeling.loader.model_loader import load_model
from tests.smollm2 import dense_tensors, of_transformers, packaged_gguf
from tests.unit.engine.dense_attention import DenseAttention

CHAT = [{"role": "user", "content": "Hé, 你好, привет: what is 2 + 2?\n\n\tExplain."}]


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return resolve("smollm2")


@pytest.fixture(scope="module")
def packaged() -> Path:
    return packaged_gguf()


@pytest.fixture(scope="module")
def oracle() -> PreTrainedModel:
    return of_transformers()


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(checkpoint.path)


@pytest.mark.thorough
def test_every_converted_weight_equals_that_of_transformers(
    checkpoint: Checkpoint, oracle: PreTrainedModel
) -> None:
    converted = dense_tensors(checkpoint.path)

    expected = oracle.state_dict()
    assert converted.keys() == expected.keys() - {"lm_head.weight"}  # tied
    for name, weight in converted.items():
        assert torch.equal(weight.float(), expected[name]), name


@pytest.mark.thorough
@torch.inference_mode()
def test_logits_choose_the_same_tokens_as_transformers(
    checkpoint: Checkpoint, oracle: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> None:
    model = load_model(checkpoint.path)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_tensors="pt")["input_ids"]

    theirs = oracle(ids).logits[0]
    ours = model.logits(model(ids[0], torch.arange(ids.shape[1]), DenseAttention(model)))

    torch.testing.assert_close(ours, theirs, atol=5e-4, rtol=0)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_tokenizer_and_chat_template_survive_the_conversion(
    packaged: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    original = AutoTokenizer.from_pretrained(packaged.parent, gguf_file=packaged.name)

    theirs = original.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    ours = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert ours == theirs
    assert tokenizer.decode(ours) == original.decode(theirs)


def test_the_chat_model_ends_its_turn_with_the_turns_end_token(
    checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert tokenizer.convert_ids_to_tokens(list(checkpoint.spec().eos_token_ids)) == ["<|im_end|>"]
