"""Quantized weights: answers are those of transformers with their values, wherever they are computed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from tests.engine_config import engine_config
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import pair, work
from tests.integration.workers.test_live_migration import LENGTH, running
from tests.integration.workers.test_mixed_worker import prompt
from tests.unit.engine.modeling.loader.quantizing import (
    FP8_FORMATS,
    INT4_FORMATS,
    INT8_FORMATS,
    rewrite,
)
from tests.unit.engine.modeling.loader.quantizing_floats import BITSANDBYTES_FORMATS, FP4_FORMATS
from tests.unit.tiny import save_tiny_llama

FORMATS = {**FP8_FORMATS, **INT4_FORMATS, **INT8_FORMATS, **FP4_FORMATS, **BITSANDBYTES_FORMATS}
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "eos_token_id": None,
}
ONE_OF_EACH = [next(iter(formats)) for formats in (FP8_FORMATS, INT4_FORMATS, INT8_FORMATS, FP4_FORMATS)]
PROMPTS = [prompt(length, seed=length) for length in (5, 33, 70)]
COUNT = 12


@dataclass(frozen=True, slots=True)
class Quantized:
    folder: Path
    oracle: Oracle


@pytest.fixture(scope="module", params=FORMATS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    folder = tmp_path_factory.mktemp("quantized")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder / "source")
    rewrite(folder / "source", folder / "quantized", folder / "dense", FORMATS[request.param])
    return Quantized(folder / "quantized", Oracle(LlamaForCausalLM.from_pretrained(folder / "dense").eval()))


def engine(folder: Path, tokens: int = 512) -> Engine:
    pages = {"page_size": 4, "num_pages": tokens // 4}
    return Engine(
        engine_config(model_path=folder, chunk_budget=16, max_model_len=128, max_running_requests=8, **pages)
    )


def answered(engine: Engine) -> list[list[int]]:
    sampling = SamplingParams(max_tokens=COUNT, min_tokens=COUNT)
    requests = [Request(id, prompt, sampling) for id, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


def test_answers_do_not_depend_on_chunks_the_cache_nor_preemption(
    model: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [model.oracle(prompt, COUNT) for prompt in PROMPTS]

    served = engine(model.folder)
    assert answered(served) == expected
    assert answered(served) == expected
    assert served.stats().cache_hit_tokens > 0

    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    small = engine(model.folder, tokens=116)
    assert answered(small) == expected
    assert small.stats().preemptions > 0


@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.thorough) for name in FORMATS],
    indirect=True,
    scope="module",
)
async def test_handed_off_and_moved_answers_are_the_same(model: Quantized) -> None:
    async with pair(model.folder) as workers:
        jobs = [work(prompt, max_tokens=6) for prompt in PROMPTS]
        outputs = await asyncio.gather(*(workers.generate(job) for job in jobs))
        assert outputs == [model.oracle(list(job.prompt), 6) for job in jobs]
        await workers.all_pages_back()

    async with running(model.folder) as move:
        await move.migrate(await move.reserve())
        await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        await move.rest(move.target, move.there.request_id)
        assert move.complete() == model.oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_a_worker_that_quantizes_refuses_the_kv_of_one_that_does_not(tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    async with pair(tmp_path, prefill={"quantization": "fp8"}) as workers:
        job = work(prompt(33), max_tokens=6)
        with pytest.raises(AssertionError, match=r"start both with the same .*--quantization"):
            await workers.generate(job)
