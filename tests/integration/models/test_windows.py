"""Models whose layers have windows: greedy answers equal transformers', with prompts of several windows, and
requests keep only the pages that a later token sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from common.kv_groups import kept_places
from engine.core.request import Request
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from tests.engine_config import engine_config
from tests.integration.models.test_every_architecture import (
    MAX_TOKENS,
    KeepPages,
    finish,
    greedy,
    new_request,
)
from tests.unit.engine.modeling.models.references import TINY

PROMPTS = [[(7 * i * i + 3 * length) % 97 for i in range(length)] for length in (1, 9, 33, 120)]
CHUNKS_AND_PAGES = [(16, 1), (13, 4), (48, 4), (None, 16)]


class Model:
    """A folder to serve, and what transformers answers to `PROMPTS`."""

    def __init__(self, kinds: str, window: int, folder: Path) -> None:
        torch.manual_seed(0)
        types = {"f": "full_attention", "w": "sliding_attention"}
        config = Qwen2Config(
            **TINY,
            layer_types=[types[kind] for kind in kinds],
            use_sliding_window=True,
            sliding_window=window,
        )
        oracle = Qwen2ForCausalLM(config)
        oracle.save_pretrained(folder)
        self.folder = folder
        self.answers = [greedy(oracle, prompt) for prompt in PROMPTS]

    def engine(self, chunk: int | None, page: int, tokens: int = 512, hooks: Any = NO_HOOKS) -> Engine:
        """`tokens`: pages for so many, if every group keeps all of its own."""
        config = engine_config(
            model_path=self.folder,
            chunk_budget=chunk,
            page_size=page,
            num_pages=tokens // page * 3,
            max_model_len=256,
            max_running_requests=8,
            page_aligned_chunks=chunk != 13,
        )
        return Engine(config, hooks=hooks)


@pytest.fixture(scope="module", params=[("www", 8), ("fww", 20), ("wfw", 5)], ids=lambda p: f"{p[0]}-{p[1]}")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(*request.param, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_computed_at_once_and_again_from_the_cache(model: Model, chunk: int | None, page: int) -> None:
    engine = model.engine(chunk, page)
    for attempt in range(2):
        requests = [new_request(10 * attempt + i, prompt) for i, prompt in enumerate(PROMPTS)]
        for request in requests:
            engine.submit(request)
        finish(engine)
        assert [request.output for request in requests] == model.answers
    assert engine.stats().cache_hit_tokens >= 100


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_handed_from_one_engine_to_another(model: Model, chunk: int | None, page: int) -> None:
    prefill = model.engine(chunk, page, hooks=KeepPages())
    decode = model.engine(chunk, page)
    groups = decode.kv.needs.groups
    for attempt in range(2):
        for id, prompt in enumerate(PROMPTS, 10 * attempt):
            source = new_request(id, prompt, max_tokens=1)
            source.pinned = True
            prefill.submit(source)
            while prefill.has_work:
                prefill.step()
            request = new_request(id, prompt)
            reservation = decode.reserve(request)
            assert reservation is not None
            blocks = range(reservation.first_token // page, -(-len(prompt) // page))
            sent = [source.pages[place] for place in kept_places(groups, page, len(prompt) - 1, blocks)]
            assert min(sent) >= 0
            decode.runner.kv.tensor[reservation.incoming] = prefill.runner.kv.tensor[sent]
            prefill.release(source)
            request.output += source.output
            decode.admit_remote(request, reservation, request.num_tokens - 1)
            finish(decode)
            assert request.output == model.answers[id - 10 * attempt]
    finish(prefill)


@pytest.mark.parametrize("page", [1, 4, 16])
def test_preempted_and_computed_again(model: Model, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without foresight, admission lets in what will not fit.
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    engine = model.engine(16, page, tokens=512)
    num_pages = engine.kv.needs.pages(engine.kv.needs.blocks(145)) + 2 * len(engine.kv.needs.groups)
    engine.kv.pool.take(engine.kv.pool.num_free - num_pages, owner=-7)  # the rest is somebody else's
    requests = [new_request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    assert [request.output for request in requests] == model.answers


def test_a_long_request_has_pages_for_its_windows_alone(tmp_path: Path) -> None:
    engine = Model("fww", 20, tmp_path).engine(16, 4)
    request = new_request(0, PROMPTS[-1])
    engine.submit(request)
    most = engine.kv.needs.pages(engine.kv.needs.blocks(120))
    assert most < 3 * 30, "less than a page in each of three groups for every block"
    while engine.has_work:
        engine.step()
        read = sum(page >= 0 for page in request.pages)
        assert read <= most + 3
        if request.output[:-1] and request.finish is None:
            kept = engine.kv.needs.windowed[0].kept
            assert read <= len(request.pages) // 3 + 2 * (kept + 1)


def test_a_prompt_that_diverges_is_continued_where_its_windows_are_cached(tmp_path: Path) -> None:
    model = Model("wfw", 5, tmp_path)
    engine = model.engine(16, 4)
    first = new_request(0, PROMPTS[-1])
    engine.submit(first)
    finish(engine)
    second = new_request(1, [*PROMPTS[-1][:60], 1, 2, 3])
    engine.submit(second)
    finish(engine)
    assert second.num_cached == 60
    fresh = model.engine(16, 4)
    again = Request(2, second.prompt, second.sampling)
    fresh.submit(again)
    finish(fresh)
    assert again.output == second.output
    assert len(again.output) == MAX_TOKENS
