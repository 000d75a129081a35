"""Other features of requests give with an adapter what they give with the model that PEFT has merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from common.origin import namespace_of
from engine.config import LoraConfig, Policy, SpeculationConfig
from engine.core.read import LabelLogprobs, Pooled, Read
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.weights import NewWeights
from engine.grammar.compiler import GrammarCompiler
from engine.loop.engine import Engine
from engine.model_config.model_spec import ModelSpec
from engine.model_config.pooling_spec import Convert, pooling_of
from engine.speculation.kinds import DrafterKind
from tests.faults.support.small_model import save_small_model
from tests.unit.engine.adapters.adapted import adapted_engine, answer, ask, load
from tests.unit.engine.adapters.peft_oracle import greedy, merged, prompts, save_adapter
from tests.unit.engine.grammar.test_structured_output import GRAMMARS, reference
from tests.unit.engine.loop.test_pooled_prompts import described, expected
from tests.unit.engine.loop.test_prompt_logprobs import Driven, assert_same, rows_of
from tests.unit.engine.loop.test_prompt_logprobs import expected as expected_rows
from tests.unit.engine.loop.test_reads import LABELS, run
from tests.unit.engine.media.vlms import FAMILIES, Part, request_of
from tests.unit.engine.modeling.loader.test_refill import another
from tests.unit.engine.speculation.test_eagle_drafts import random_head
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

_LORA = LoraConfig(max_loras=2, max_lora_rank=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def styles(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("styles")
    return [save_adapter(base, folder / f"style{seed}", seed) for seed in range(2)]


@pytest.fixture(scope="module")
def oracles(base: Path, styles: list[Path]) -> list[PreTrainedModel]:
    """Merged models: of no adapter, and of each style."""
    return [merged(base, style) for style in (None, *styles)]


def digests_of(engine: Engine, styles: Sequence[Path]) -> list[bytes]:
    return [b"", *(load(engine, style) for style in styles)]


def adapted(request: Request, digest: bytes) -> Request:
    """A request with the adapter."""
    return replace(
        request,
        adapter=digest.hex(),
        adapter_digest=digest,
        namespace=namespace_of(adapter=digest),
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_grammars(overlap: bool, tmp_path: Path) -> None:
    small = save_small_model(tmp_path / "base")
    styles = [save_adapter(small.folder, tmp_path / f"style{seed}", seed) for seed in range(2)]
    engine = adapted_engine(small.folder, max_model_len=256, overlap=overlap, chunk_budget=16)
    compiler = GrammarCompiler(small.folder, ModelSpec.from_folder(small.folder))
    prompt = prompts(1, 20, 300)[0]
    requests, right = [], []
    for digest, style in zip(digests_of(engine, styles), (None, *styles), strict=True):
        model = replace(small, model=merged(small.folder, style))
        for grammar in GRAMMARS:
            options = {"grammar": grammar, "max_tokens": 60, "ignore_eos": False}
            request = ask(len(requests), prompt, digest, **options)
            request.matcher = compiler.matcher(grammar)
            requests.append(request)
            right.append(reference(model, prompt, grammar))
    answer(engine, *requests)
    assert [request.output for request in requests] == right
    assert len({*map(tuple, right)}) > len(GRAMMARS), "the adapters change nothing"


@pytest.mark.parametrize("chunk", [3, 64])
def test_log_probabilities_of_prompt_and_answer(
    chunk: int, base: Path, styles: list[Path], oracles: list[PreTrainedModel]
) -> None:
    engine, prompt = adapted_engine(base, chunk_budget=chunk), prompts(1, 30, VOCAB)[0]
    driven, digests = Driven(engine), digests_of(engine, styles)
    options: dict[str, Any] = {"max_tokens": 4, "logprobs": 2, "prompt_logprobs": 3}
    for again in range(2):  # the second time, the prompt's KV and its rows are cached
        requests = [ask(10 * again + n, prompt, digest, **options) for n, digest in enumerate(digests)]
        for request in requests:
            engine.submit(request)
        found: dict[int, list[float]] = {request.id: [] for request in requests}
        while engine.has_work:
            output = engine.step()
            for request, scores in output.outputs:
                driven.scored.setdefault(request.id, []).append(scores)
            for token in output.tokens:
                assert token.logprobs is not None
                found[token.request.id].append(token.logprobs.logprob)
        for request, oracle in zip(requests, oracles, strict=True):
            assert_same(rows_of(driven.scored[request.id]), expected_rows(oracle, prompt), atol=1e-4)
            assert request.output == greedy(oracle, prompt, 4)
            with torch.no_grad():
                logits = oracle(torch.tensor([[*prompt, *request.output]])).logits[0]  # type: ignore[operator]
            rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
            right = rows.gather(1, torch.tensor(request.output)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(found[request.id]), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["model", "head"])
@pytest.mark.parametrize("overlap", [False, True])
def test_drafts_of_models_and_heads(
    kind: str,
    overlap: bool,
    base: Path,
    styles: list[Path],
    oracles: list[PreTrainedModel],
    tmp_path: Path,
) -> None:
    path = base
    if kind == "head":
        path = tmp_path / "head"
        random_head(path, VOCAB, torch.arange(VOCAB), layers=(0, 1))
    speculation = SpeculationConfig(
        num_draft_tokens=3, adaptive=False, drafters=frozenset({DrafterKind.MODEL}), model_path=path
    )
    engine = adapted_engine(base, chunk_budget=16, overlap=overlap, speculation=speculation)
    asked = prompts(2, 21, VOCAB)
    requests = [
        ask(10 * place + number, prompt, digest, max_tokens=16)
        for place, prompt in enumerate(asked)
        for number, digest in enumerate(digests_of(engine, styles))
    ]
    answer(engine, *requests)
    assert [request.output for request in requests] == [
        greedy(oracle, prompt, 16) for prompt in asked for oracle in oracles
    ]
    assert engine.stats().drafts.drafted > 0


def test_priorities_that_preempt(base: Path, styles: list[Path], oracles: list[PreTrainedModel]) -> None:
    """More urgent requests of other adapters take pages and slots."""
    order = {"policy": Policy.PRIORITY, "priority_preemption_threshold": 0}
    engine = adapted_engine(
        base, lora=LoraConfig(max_loras=1, max_lora_rank=4), num_pages=30, chunk_budget=9, **order
    )
    digests, asked = digests_of(engine, styles), prompts(9, 30, VOCAB)
    requests = [
        replace(ask(number, prompt, digests[number % 3], max_tokens=16), priority=number)
        for number, prompt in enumerate(asked)
    ]
    preempted, waiting = 0, list(requests)
    for step in range(600):
        if waiting and step % 4 == 0:
            engine.submit(waiting.pop(0))
        preempted += len(engine.step().preempted)
    assert not engine.has_work
    assert preempted >= 2
    for number, request in enumerate(requests):
        assert request.output == greedy(oracles[number % 3], request.prompt, 16)


def test_samples_of_one_prompt_have_the_probabilities_of_their_adapter(
    base: Path, styles: list[Path], oracles: list[PreTrainedModel]
) -> None:
    """Several answers to one prompt are those that the merged model's own engine draws with these seeds."""
    engine, prompt = adapted_engine(base), prompts(1, 30, VOCAB)[0]
    digests = digests_of(engine, styles)
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 8}
    requests = [
        ask(10 * number + seed, prompt, digest, seed=seed, **options)
        for number, digest in enumerate(digests)
        for seed in range(3)
    ]
    answer(engine, *requests)
    for number, oracle in enumerate(oracles):
        folder = styles[0].parent / f"merged{number}"
        oracle.save_pretrained(folder)
        alone = Engine(make_config(folder))
        right = [ask(seed, prompt, seed=seed, **options) for seed in range(3)]
        answer(alone, *right)
        mine = requests[3 * number : 3 * number + 3]
        assert [request.output for request in mine] == [request.output for request in right]


def test_reads_of_labels(base: Path, styles: list[Path], oracles: list[PreTrainedModel]) -> None:
    engine, prompt = adapted_engine(base, chunk_budget=7), prompts(1, 30, VOCAB)[0]
    for first in (0, 10):
        asked = [
            adapted(Request(first + n, prompt, SamplingParams(max_tokens=0), read=Read(LABELS)), digest)
            for n, digest in enumerate(digests_of(engine, styles))
        ]
        found = run(engine, *asked)
        for request, oracle in zip(asked, oracles, strict=True):
            with torch.no_grad():
                logits = oracle(torch.tensor([prompt])).logits[0, -1]  # type: ignore[operator]
            right = logits.log_softmax(-1)[list(LABELS)]
            numbers = found[request.id]
            assert isinstance(numbers, LabelLogprobs)
            torch.testing.assert_close(torch.tensor(numbers.logprobs), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
@pytest.mark.parametrize("chunk", [3, 64])
def test_vectors(mode: str, chunk: int, tmp_path: Path) -> None:
    base = tmp_path / "base"
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    shape |= {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    Qwen3ForCausalLM(Qwen3Config(**shape, initializer_range=0.5)).save_pretrained(base)
    described(base, mode)
    styles = [save_adapter(base, tmp_path / f"style{seed}", seed) for seed in range(2)]
    pooling = pooling_of(base, ModelSpec.from_folder(base), Convert.POOL)
    assert pooling is not None
    config = make_config(base, lora=_LORA, chunk_budget=chunk, page_aligned_chunks=False)
    engine, prompt = Engine(replace(config, pooling=pooling)), prompts(1, 40, VOCAB)[0]
    digests = digests_of(engine, styles)
    for first in (0, 10):
        read = Read(pooling=pooling.pooling)
        asked = [
            adapted(Request(first + n, prompt, SamplingParams(max_tokens=0), read=read), digest)
            for n, digest in enumerate(digests)
        ]
        found: dict[int, Any] = run(engine, *asked)
        for request, style in zip(asked, (None, *styles), strict=True):
            numbers = found[request.id]
            assert isinstance(numbers, Pooled)
            vector = np.frombuffer(numbers.values, "<f4")
            right = expected(merged(base, style), prompt, pooling.pooling)
            np.testing.assert_allclose(vector, right, atol=1e-3)


def test_adapters_on_other_weights_of_their_base(base: Path, styles: list[Path], tmp_path: Path) -> None:
    """The engine's weights are replaced; adapters stay loaded, and are added to the new ones."""
    new = another(base, tmp_path / "new")
    engine, prompt = adapted_engine(base), prompts(1, 30, VOCAB)[0]
    digests = digests_of(engine, styles)
    outputs = []
    for first, weights in ((0, base), (10, new)):
        if weights is new:
            engine.refill(NewWeights(new))
        requests = [ask(first + n, prompt, digest) for n, digest in enumerate(digests)]
        answer(engine, *requests)
        outputs.append([request.output for request in requests])
        assert outputs[-1] == [greedy(merged(weights, style), prompt, 6) for style in (None, *styles)]
    assert outputs[0] != outputs[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_images(family: str, tmp_path: Path) -> None:
    """Adapters of the language model's layers, in prompts with images."""
    base, served = tmp_path / "base", FAMILIES[family]
    served.save(base)
    targets = r".*(language|text)_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    styles = [
        save_adapter(
            base,
            tmp_path / f"style{seed}",
            seed,
            kind=AutoModelForImageTextToText,
            size=0.1,
            target_modules=targets,
        )
        for seed in range(2)
    ]
    red, blue = served.images(2)
    parts: list[Part] = [[3, 4, 5], red, [6, 7, 8, 9], blue, [10]]
    engine = adapted_engine(
        base, num_pages=256, max_model_len=256, chunk_budget=max(7, served.least), page_aligned_chunks=False
    )
    digests = digests_of(engine, styles)
    requests = [adapted(request_of(n, parts), digest) for n, digest in enumerate(digests, 1)]
    answer(engine, *requests)
    right = [
        served.expected(merged(base, style, kind=AutoModelForImageTextToText), parts, 8)
        for style in (None, *styles)
    ]
    assert [request.output for request in requests] == right
    assert len({*map(tuple, right)}) > 1, "the adapters change nothing"
