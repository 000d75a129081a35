"""Vectors on a GPU, in float32 and bfloat16, equal those of transformers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
    XLMRobertaConfig,
    XLMRobertaModel,
)

from engine.loop.engine import Engine
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import pooling_of
from tests.gpu.driving import gpu_config, random_tokens
from tests.gpu.models import VOCAB
from tests.unit.engine.loop.test_pooled_prompts import cosine, described, expected, vectors

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 1100,
    "initializer_range": 0.08,
    "pad_token_id": 1,
}
_GEMMA: dict[str, Any] = {
    **_SHAPE,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "use_bidirectional_attention": True,
    "sliding_window": 64,
    "query_pre_attn_scalar": 64,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**_SHAPE)),
    "xlm-r": lambda: XLMRobertaModel(XLMRobertaConfig(**_SHAPE)),
    "embedding-gemma": lambda: Gemma3TextModel(Gemma3TextConfig(**_GEMMA)),
    "qwen3": lambda: Qwen3Model(Qwen3Config(**_SHAPE, num_key_value_heads=2, head_dim=64)),
}
PROMPTS = [
    random_tokens(length, seed=length) for length in (1, 2, 3, 17, 64, 65, 97, 129, 200, 700, *range(20, 60))
]


def save(name: str, folder: Path) -> PreTrainedModel:
    """float32, with weights that bfloat16 holds exactly."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
    model.save_pretrained(folder)
    return model


def found(folder: Path, dtype: str, **changes: Any) -> tuple[list[np.ndarray[Any, Any]], Pooling]:
    spec = ModelSpec.from_folder(folder)
    pooling = pooling_of(folder, spec)
    assert pooling is not None
    config = gpu_config(folder, dtype=dtype, attention_backend="auto", pooling=pooling, **changes)
    if spec.attention.bidirectional:
        whole = replace(config.scheduler, chunked_prefill=False, chunk_budget=None, max_prefill_tokens=2048)
        config = replace(config, scheduler=whole, radix_cache=False)
    engine = Engine(config)
    try:
        return [vectors(engine, pooling, PROMPTS) for _ in range(2)][-1], pooling.pooling
    finally:
        engine.close()


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1 - 1e-6), ("bfloat16", 1 - 2e-3)])
@pytest.mark.parametrize("mode", ["cls_token", "mean_tokens"])
@pytest.mark.parametrize("name", ["bert", "xlm-r", "embedding-gemma"])
def test_vectors_of_encoders(name: str, mode: str, dtype: str, least: float, tmp_path: Path) -> None:
    model = save(name, tmp_path)
    described(tmp_path, mode)
    for overlap in (False, True):
        each, pooling = found(tmp_path, dtype, overlap=overlap)
        for prompt, vector in zip(PROMPTS, each, strict=True):
            assert cosine(vector, expected(model, prompt, pooling)) >= least, len(prompt)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1 - 1e-6), ("bfloat16", 1 - 2e-3)])
@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens", "weightedmean_tokens"])
def test_vectors_of_a_decoder_in_chunks_after_cached_prefixes_and_in_graphs(
    mode: str, dtype: str, least: float, tmp_path: Path
) -> None:
    model = save("qwen3", tmp_path)
    described(tmp_path, mode)
    graphs = {"cuda_graph_max_batch": 8, "cuda_graph_max_tokens": 128}
    for changes in ({}, {"overlap": True}, graphs if dtype == "bfloat16" else {}):
        each, pooling = found(tmp_path, dtype, chunk_budget=128, **changes)
        for prompt, vector in zip(PROMPTS, each, strict=True):
            assert cosine(vector, expected(model, prompt, pooling)) >= least, len(prompt)
