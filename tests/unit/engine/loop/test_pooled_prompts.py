"""Vectors of prompts equal those of transformers, for every family, pooling, chunk size and prefix hit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    MistralConfig,
    MistralModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
    RobertaConfig,
    RobertaForSequenceClassification,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

from engine.config import EngineConfig, Policy
from engine.core.read import Pooled, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import UnservableRequest
from engine.loop.engine import Engine
from engine.model_config.errors import UnsupportedModel
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Pooling
from engine.model_config.pooling_spec import Convert, PoolingSpec, pooling_of
from tests.unit.engine.loop.test_reads import prompt_of
from tests.unit.tiny import VOCAB, make_config

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
    "pad_token_id": 1,
}
_DECODER: dict[str, Any] = {**_SHAPE, "num_key_value_heads": 2, "head_dim": 8}
_GEMMA: dict[str, Any] = {
    **_DECODER,
    "use_bidirectional_attention": True,
    "sliding_window": 8,
    "query_pre_attn_scalar": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
ENCODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BertConfig(**_SHAPE), add_pooling_layer=True),
    "xlm-r": lambda: XLMRobertaModel(XLMRobertaConfig(**_SHAPE)),
    "embedding-gemma": lambda: Gemma3TextModel(Gemma3TextConfig(**_GEMMA)),
}
DECODERS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3": lambda: Qwen3Model(Qwen3Config(**_DECODER)),
    "qwen3 with its head": lambda: Qwen3ForCausalLM(Qwen3Config(**_DECODER)),
    "mistral": lambda: MistralModel(MistralConfig(**_DECODER, sliding_window=None)),
}
CLASSIFIERS: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertForSequenceClassification(BertConfig(**_SHAPE, num_labels=3)),
    "roberta": lambda: RobertaForSequenceClassification(RobertaConfig(**_SHAPE, num_labels=1)),
    "xlm-r": lambda: XLMRobertaForSequenceClassification(XLMRobertaConfig(**_SHAPE, num_labels=1)),
    "qwen3": lambda: Qwen3ForSequenceClassification(Qwen3Config(**_DECODER, num_labels=1)),
}
PROMPTS = [prompt_of(length, seed=length) for length in (1, 2, 3, 17, 40, 90)]


def made(build: Callable[[], PreTrainedModel], folder: Path) -> PreTrainedModel:
    torch.manual_seed(0)
    model = build().eval()
    model.save_pretrained(folder)
    return model


def described(folder: Path, mode: str, *, dense: bool = False, normalize: bool = True) -> None:
    """Make it a folder of sentence-transformers."""
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def engine_of(
    folder: Path, convert: Convert = Convert.POOL, override: str | None = None, **changes: Any
) -> tuple[Engine, PoolingSpec]:
    spec = ModelSpec.from_folder(folder)
    pooling = pooling_of(folder, spec, convert, override)
    assert pooling is not None
    config: EngineConfig = make_config(folder, **changes)
    config = replace(config, pooling=pooling)
    if spec.attention.bidirectional:
        whole = replace(config.scheduler, chunked_prefill=False, chunk_budget=None, max_prefill_tokens=128)
        config = replace(config, scheduler=whole, radix_cache=False)
    return Engine(config), pooling


def vectors(engine: Engine, pooling: PoolingSpec, prompts: list[list[int]]) -> list[npt.NDArray[np.float32]]:
    found: dict[int, npt.NDArray[np.float32]] = {}
    for index, prompt in enumerate(prompts):
        read = Read(pooling=pooling.pooling)
        engine.submit(Request(index, prompt, SamplingParams(max_tokens=0), read=read))
    while engine.has_work:
        output = engine.step()
        assert not output.failed
        for request, numbers in output.outputs:
            assert isinstance(numbers, Pooled)
            assert numbers.position == len(request.prompt)
            found[request.id] = np.frombuffer(numbers.values, "<f4")
        engine.check_pages()
    return [found[index] for index in range(len(prompts))]


@torch.no_grad()
def expected(model: PreTrainedModel, prompt: list[int], pooling: Pooling) -> npt.NDArray[np.float32]:
    base = getattr(model, "model", model) if isinstance(model, Qwen3ForCausalLM) else model
    hidden = base(torch.tensor([prompt])).last_hidden_state[0]
    n, weights = len(prompt), torch.arange(1.0, len(prompt) + 1)[:, None]
    rows = {
        Pooling.LAST: hidden[-1],
        Pooling.CLS: hidden[0],
        Pooling.MEAN: hidden.mean(0),
        Pooling.WEIGHTED_MEAN: (hidden * weights).sum(0) / weights.sum(),
        Pooling.MEAN_SQRT_LEN: hidden.sum(0) / n**0.5,
    }
    return rows[pooling].numpy()


def cosine(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


ALL_ROWS = ["mean_tokens", "weightedmean_tokens", "mean_sqrt_len_tokens"]


@pytest.mark.parametrize("mode", ["cls_token", "lasttoken", *ALL_ROWS])
@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_of_encoders(name: str, mode: str, tmp_path: Path) -> None:
    model = made(ENCODERS[name], tmp_path)
    described(tmp_path, mode)
    engine, pooling = engine_of(tmp_path)

    found = vectors(engine, pooling, PROMPTS)

    assert pooling.normalize
    for prompt, vector in zip(PROMPTS, found, strict=True):
        assert cosine(vector, expected(model, prompt, pooling.pooling)) >= 1 - 1e-6
        np.testing.assert_allclose(vector, expected(model, prompt, pooling.pooling), atol=2e-4)


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("mode", [*ALL_ROWS, "lasttoken"])
@pytest.mark.parametrize("name", DECODERS)
def test_vectors_of_decoders_for_every_chunk_size(name: str, mode: str, chunk: int, tmp_path: Path) -> None:
    model = made(DECODERS[name], tmp_path)
    described(tmp_path, mode)
    engine, pooling = engine_of(tmp_path, chunk_budget=chunk, page_aligned_chunks=False)

    once = vectors(engine, pooling, PROMPTS)
    again = vectors(engine, pooling, PROMPTS)

    for prompt, first, second in zip(PROMPTS, once, again, strict=True):
        np.testing.assert_allclose(first, expected(model, prompt, pooling.pooling), atol=2e-4)
        assert cosine(first, expected(model, prompt, pooling.pooling)) >= 1 - 1e-6
        assert cosine(second, expected(model, prompt, pooling.pooling)) >= 1 - 1e-6
    # All of a prompt but its last block, or the whole blocks before its last token.
    whole = sum((len(prompt) - 1) // engine.config.page_size for prompt in PROMPTS) * engine.config.page_size
    assert engine.stats().cache_hit_tokens >= whole


@pytest.mark.parametrize("mode", ALL_ROWS)
def test_prompts_with_one_beginning_share_its_sums(mode: str, tmp_path: Path) -> None:
    model = made(DECODERS["qwen3"], tmp_path)
    described(tmp_path, mode)
    engine, pooling = engine_of(tmp_path, chunk_budget=7, page_aligned_chunks=False)
    begin, size = prompt_of(50, 1), engine.config.page_size
    prompts = [begin + prompt_of(length, length) for length in (1, 5, 20, 33)]

    for prompt in [begin, *prompts, *prompts]:
        before = engine.stats().cache_hit_tokens
        [vector] = vectors(engine, pooling, [prompt])
        assert cosine(vector, expected(model, prompt, pooling.pooling)) >= 1 - 1e-6
        assert prompt == begin or engine.stats().cache_hit_tokens - before >= 50 // size * size


def test_pages_without_sums_are_computed_again(tmp_path: Path) -> None:
    model = made(DECODERS["qwen3"], tmp_path)
    described(tmp_path, "mean_tokens")
    engine, pooling = engine_of(tmp_path)
    prompt, size = prompt_of(60), engine.config.page_size
    vectors(engine, pooling, [prompt])
    [second, *_] = engine.kv.cache.known(prompt[: 2 * size], engine.kv.cache.root(b"")).pages[1:]
    engine.kv.sidecars.clear([second])

    hits = []
    for _ in range(2):
        before = engine.stats().cache_hit_tokens
        [vector] = vectors(engine, pooling, [prompt])
        assert cosine(vector, expected(model, prompt, Pooling.MEAN)) >= 1 - 1e-6
        hits.append(engine.stats().cache_hit_tokens - before)
    assert hits == [size, (len(prompt) - 1) // size * size]


@pytest.mark.parametrize("mode", ALL_ROWS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("radix_cache", [False, True])
def test_a_mean_survives_preemptions(radix_cache: bool, overlap: bool, mode: str, tmp_path: Path) -> None:
    """More urgent prompts come while others are computed, and take their pages."""
    model = made(DECODERS["qwen3"], tmp_path)
    described(tmp_path, mode)
    engine, pooling = engine_of(
        tmp_path,
        chunk_budget=9,
        page_aligned_chunks=False,
        num_pages=26,
        policy=Policy.PRIORITY,
        priority_preemption_threshold=0,
        radix_cache=radix_cache,
        overlap=overlap,
    )
    begin, found, preempted = prompt_of(20, 7), dict[int, npt.NDArray[np.float32]](), 0
    prompts = [(begin if number % 2 else []) + prompt_of(45 + 4 * number, number) for number in range(8)]
    waiting = list(enumerate(prompts))
    for number in range(400):
        if waiting and number % 4 == 0:
            at, prompt = waiting.pop(0)
            read = Read(pooling=pooling.pooling)
            engine.submit(Request(at, prompt, SamplingParams(max_tokens=0), priority=at, read=read))
        output = engine.step()
        preempted += len(output.preempted)
        for request, numbers in output.outputs:
            assert isinstance(numbers, Pooled)
            assert request.id not in found
            found[request.id] = np.frombuffer(numbers.values, "<f4")
        engine.check_pages()
    assert preempted >= 3
    assert not engine.has_work
    for number, prompt in enumerate(prompts):
        assert cosine(found[number], expected(model, prompt, pooling.pooling)) >= 1 - 1e-6


@pytest.mark.parametrize("name", CLASSIFIERS)
@torch.no_grad()
def test_scores_of_labels(name: str, tmp_path: Path) -> None:
    model = made(CLASSIFIERS[name], tmp_path)
    engine, pooling = engine_of(tmp_path, Convert.AUTO)

    found = vectors(engine, pooling, PROMPTS)

    assert len(pooling.labels) == model.config.num_labels
    for prompt, scores in zip(PROMPTS, found, strict=True):
        np.testing.assert_allclose(scores, model(torch.tensor([prompt])).logits[0].numpy(), atol=2e-4)


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
@pytest.mark.parametrize("labels", [1, 3])
@torch.no_grad()
def test_rewards_and_classes_of_decoders_for_every_chunk_size(
    labels: int, pooling: str, chunk: int, tmp_path: Path
) -> None:
    """A reward is a classifier's one label. Means are those of the labels' logits, as the head is linear."""
    config = Qwen3Config(**_DECODER, num_labels=labels)
    model: Any = made(lambda: Qwen3ForSequenceClassification(config), tmp_path)
    engine, spec = engine_of(
        tmp_path,
        Convert.AUTO,
        json.dumps({"pooling_type": pooling}),
        chunk_budget=chunk,
        page_aligned_chunks=False,
    )

    once, again = vectors(engine, spec, PROMPTS), vectors(engine, spec, PROMPTS)

    assert len(spec.labels) == labels
    for prompt, first, second in zip(PROMPTS, once, again, strict=True):
        rows = model.score(model.model(torch.tensor([prompt])).last_hidden_state[0])
        wanted = (rows[-1] if pooling == "LAST" else rows.mean(0)).numpy()
        np.testing.assert_allclose(first, wanted, atol=2e-4)
        np.testing.assert_allclose(second, wanted, atol=2e-4)
    hits = engine.stats().cache_hit_tokens
    assert (hits > 0) == (pooling == "LAST"), "no page keeps the sum of a classifier"


@torch.no_grad()
def test_the_second_kind_of_tokens_has_ids_after_the_first(tmp_path: Path) -> None:
    model = made(CLASSIFIERS["bert"], tmp_path)
    engine, pooling = engine_of(tmp_path)
    prompt, kinds = prompt_of(20), [0] * 8 + [1] * 12

    [scores] = vectors(engine, pooling, [[i + VOCAB * kind for i, kind in zip(prompt, kinds, strict=True)]])

    oracle = model(torch.tensor([prompt]), token_type_ids=torch.tensor([kinds])).logits[0]
    np.testing.assert_allclose(scores, oracle.numpy(), atol=2e-4)


@torch.no_grad()
def test_dense_layers_after_pooling(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    model = made(ENCODERS["embedding-gemma"], tmp_path)
    described(tmp_path, "mean_tokens", dense=True)
    dense = torch.nn.Linear(32, 48, bias=False)
    (tmp_path / "2_Dense").mkdir()
    options = {
        "in_features": 32,
        "out_features": 48,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    (tmp_path / "2_Dense/config.json").write_text(json.dumps(options))
    save_file({"linear.weight": dense.weight.data}, tmp_path / "2_Dense/model.safetensors")
    engine, pooling = engine_of(tmp_path)

    [vector] = vectors(engine, pooling, [PROMPTS[4]])

    mean = torch.from_numpy(expected(model, PROMPTS[4], Pooling.MEAN))
    np.testing.assert_allclose(vector, torch.tanh(dense(mean)).numpy(), atol=2e-4)
    assert pooling.size == 48


def test_a_request_for_text_is_refused_and_so_is_a_vector_of_a_model_of_text(tmp_path: Path) -> None:
    made(DECODERS["qwen3"], tmp_path)
    engine, _ = engine_of(tmp_path)
    with pytest.raises(UnservableRequest, match="computes vectors"):
        engine.submit(Request(0, [5, 6], SamplingParams(max_tokens=2)))
    made(DECODERS["qwen3 with its head"], tmp_path)
    with pytest.raises(UnservableRequest, match="generates text"):
        Engine(make_config(tmp_path)).submit(
            Request(0, [5, 6], SamplingParams(max_tokens=0), read=Read(pooling="last"))
        )


@pytest.mark.parametrize(
    ("build", "mode", "text"),
    [
        ("qwen3", "cls_token", "CLS pooling of a causal model"),
        ("qwen3", "max_tokens", "pooling by max is not supported"),
    ],
)
def test_other_poolings_are_refused_by_name(build: str, mode: str, text: str, tmp_path: Path) -> None:
    made(DECODERS[build], tmp_path)
    described(tmp_path, mode)
    with pytest.raises(UnsupportedModel, match=text):
        pooling_of(tmp_path, ModelSpec.from_folder(tmp_path))


def test_a_model_with_a_language_model_head_generates_text_unless_it_is_converted(tmp_path: Path) -> None:
    made(DECODERS["qwen3 with its head"], tmp_path)
    spec = ModelSpec.from_folder(tmp_path)
    assert pooling_of(tmp_path, spec) is None
    embeds = pooling_of(tmp_path, spec, Convert.EMBED)
    assert embeds is not None
    assert (embeds.pooling, embeds.normalize) == (Pooling.LAST, True)
    changed = pooling_of(tmp_path, spec, Convert.EMBED, '{"pooling_type": "MEAN", "normalize": false}')
    assert changed is not None
    assert (changed.pooling, changed.normalize) == (Pooling.MEAN, False)
    with pytest.raises(UnsupportedModel, match="ForSequenceClassification"):
        pooling_of(tmp_path, spec, Convert.CLASSIFY)
