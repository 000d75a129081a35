"""Greedy answers of tiny models of every architecture equal transformers', for all sizes and wherever the
prompt was computed. Every architecture meets every size of chunk and of page where it is computed in one
place, and one of each elsewhere; the full product, which would take hours on a real model, is for `make
test-all`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet
from transformers import PreTrainedModel

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from engine.model_config.model_spec import ModelSpec
from tests.engine_config import engine_config
from tests.integration.models.classes.shrinking import random_model, tiny_config
from tests.unit.engine.modeling.models.reference_names import LIKE_OTHERS, NAMES
from tests.unit.engine.modeling.models.references import reference

MAX_TOKENS = 24
PROMPTS = [[(7 * i * i + 3 * length) % 97 for i in range(length)] for length in (1, 5, 33, 90)]
CHUNKS, PAGES = (16, 48, None), (1, 4, 16)
PAIRS = list(zip(CHUNKS, PAGES, strict=True))


def sizes(quick: Sequence[tuple[int | None, int]]) -> list[ParameterSet]:
    return [
        pytest.param(chunk, page, marks=[] if (chunk, page) in quick else pytest.mark.thorough)
        for chunk in CHUNKS
        for page in PAGES
    ]


GENERAL = ("phi",)
"""Model types that run transformers' modules."""


class Model:
    """A folder to serve, and what transformers answers to `PROMPTS`."""

    def __init__(self, name: str, folder: Path) -> None:
        general = name in GENERAL
        oracle = random_model(tiny_config(name)) if general else reference(name)
        oracle.save_pretrained(folder)
        self.folder = folder
        self.answers = [greedy(oracle, prompt) for prompt in PROMPTS]
        self.groups = ModelSpec.from_folder(folder).kv_groups
        self.has_windows = any(group.window is not None for group in self.groups)

    def engine(self, chunk: int | None, page: int, tokens: int = 512, hooks: Any = NO_HOOKS) -> Engine:
        """`tokens`: pages for so many, if every group keeps all of its own."""
        config = engine_config(
            model_path=self.folder,
            chunk_budget=chunk,
            page_size=page,
            num_pages=tokens // page * len(self.groups),
            max_model_len=256,
            max_running_requests=8,
        )
        return Engine(config, hooks=hooks)


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    output: Any = model.generate(  # type: ignore[operator]
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        min_new_tokens=MAX_TOKENS,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


ALIKE = [pytest.param(name, marks=pytest.mark.thorough) for name in LIKE_OTHERS]


@pytest.fixture(scope="module", params=[*NAMES, *GENERAL, *ALIKE])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("model"))


def new_request(id: int, prompt: list[int], max_tokens: int = MAX_TOKENS) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens))


def finish(engine: Engine) -> None:
    while engine.has_work:
        engine.step()
    pages = engine.check_pages()
    assert pages.free + pages.cached == pages.total


@pytest.mark.parametrize(("chunk", "page"), sizes(PAIRS))
def test_computed_in_one_place_at_once_and_again_from_the_cache(
    model: Model, chunk: int | None, page: int
) -> None:
    engine = model.engine(chunk, page)
    for attempt in range(2):
        requests = [new_request(10 * attempt + i, prompt) for i, prompt in enumerate(PROMPTS)]
        for request in requests:
            engine.submit(request)
        finish(engine)
        assert [request.output for request in requests] == model.answers
    assert engine.stats().cache_hit_tokens > 0


class KeepPages:
    """The hooks of a worker that hands off its KV."""

    def on_started(self, requests: list[Request]) -> None:
        pass

    def on_computed(self, request: Request, upto: int) -> None:
        pass

    def on_finished(self, request: Request) -> bool:
        return True


@pytest.mark.parametrize(("chunk", "page"), sizes(PAIRS[1:2]))
def test_prompts_computed_by_one_engine_and_answered_by_another(
    model: Model, chunk: int | None, page: int
) -> None:
    prefill = model.engine(chunk, page, hooks=KeepPages())
    decode = model.engine(chunk, page)
    assert handed_over(prefill, decode, PROMPTS, page) == model.answers


def handed_over(prefill: Engine, decode: Engine, prompts: Sequence[list[int]], page: int) -> list[list[int]]:
    """Answers of `decode` to prompts that `prefill` has computed."""
    requests = []
    for id, prompt in enumerate(prompts):
        source = new_request(id, prompt, max_tokens=1)
        prefill.submit(source)
        while prefill.has_work:
            prefill.step()
        request = new_request(id, prompt)
        reservation = decode.reserve(request)
        assert reservation is not None
        needs = prefill.kv.needs
        blocks = range(reservation.first_token // page, needs.blocks(len(prompt)))
        sent = [source.pages[place] for place in needs.places_of_arriving(blocks, len(prompt) - 1)]
        decode.runner.kv.tensor[reservation.incoming] = prefill.runner.kv.tensor[sent]
        if source.state is not None:
            theirs = decode.runner.kv.blocks_of(*reservation.slots)
            ours = prefill.runner.kv.blocks_of(source.state.slot)
            decode.runner.kv.memory[list(theirs)] = prefill.runner.kv.memory[list(ours)]
        prefill.release(source)
        request.output += source.output
        decode.admit_remote(request, reservation, request.num_tokens - 1)
        decode.step()
        requests.append(request)
    finish(prefill)
    finish(decode)
    return [request.output for request in requests]


@pytest.mark.parametrize(
    "page", [pytest.param(1, marks=pytest.mark.thorough), 4, pytest.param(16, marks=pytest.mark.thorough)]
)
def test_preempted_and_computed_again(model: Model, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without foresight, admission lets in what will not fit.
    monkeypatch.setattr(
        "engine.sched.output_lengths.OutputLengths.remaining",
        lambda _, requests: np.zeros(len(requests), dtype=int),
    )
    engine = model.engine(16, page, tokens=192)
    if model.has_windows:  # which need less: the rest is somebody else's
        needs = engine.kv.needs
        engine.kv.pool.take(engine.kv.pool.num_free - needs.pages(needs.blocks(105)), owner=-7)
    requests = [new_request(i, prompt) for i, prompt in enumerate(PROMPTS)]
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    assert engine.stats().preemptions > 0
    assert [request.output for request in requests] == model.answers
