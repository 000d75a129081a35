"""Whatever the preset, greedy output is that of transformers: the schedule decides when, never what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.sched.presets import PRESETS, Preset
from tests.engine_config import engine_config
from tests.unit.tiny import VOCAB, save_tiny_llama

MAX_TOKENS = 12
PREFIX = [5, 9, 2, 7, 11, 3, 8, 4, 6, 10] * 3
PROMPTS = [
    [*PREFIX, *[(7 * i + j) % (VOCAB - 2) + 2 for j in range(n)]]
    for i, n in enumerate((1, 40, 5, 70, 23, 11))
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save_tiny_llama(folder)


@pytest.fixture(scope="module")
def expected(model: tuple[Path, LlamaForCausalLM]) -> list[list[int]]:
    return [greedy(model[1], prompt) for prompt in PROMPTS]


@torch.inference_mode()
def greedy(model: LlamaForCausalLM, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(MAX_TOKENS):
        logits = model(torch.tensor([tokens])).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("chunked", [True, False], ids=["chunks", "whole prompts"])
@pytest.mark.parametrize("pages", [1, 3], ids=["short of pages", "plenty"])
@pytest.mark.parametrize("preset", Preset)
def test_greedy_output_equals_transformers(
    model: tuple[Path, LlamaForCausalLM], expected: list[list[int]], preset: Preset, pages: int, chunked: bool
) -> None:
    settings = PRESETS[preset]
    page = min(settings.page_size, 4)
    scheduler = replace(
        settings.scheduler,
        chunked_prefill=chunked,
        chunk_budget=None if settings.scheduler.chunk_budget is None else 24 if chunked else 110,
        long_prefill_token_threshold=settings.scheduler.long_prefill_token_threshold and 9,
        max_running_requests=4,
    )
    engine = Engine(
        engine_config(
            model_path=model[0],
            page_size=page,
            num_pages=pages * 130 // page,
            max_model_len=128,
            scheduler=scheduler,
        )
    )
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [Request(i, prompt, sampling) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
        engine.step()
    while engine.has_work:
        engine.step()
    assert [request.output for request in requests] == expected
    counts = engine.check_pages()
    assert counts.free + counts.cached == counts.total
