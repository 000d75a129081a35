"""Prompts with images and their answers from worker to worker: only the digests and grids go with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.core.request import Request
from engine.errors import MediaMissing, UnservableRequest
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from tests.engine_config import engine_config
from tests.integration.models.test_every_architecture import finish
from tests.integration.models.test_windows_handed_over import Worker, deliver, reserve
from tests.unit.engine.media.vlms import FAMILIES, Part, request_of, tokens_of, without_arrays

MAX_TOKENS = 20
CHUNKS_AND_PAGES = [(9, 1), (13, 4), (48, 4)]


class Model:
    """A folder to serve, prompts, and what transformers answers."""

    def __init__(self, name: str, folder: Path) -> None:
        family = FAMILIES[name]
        oracle = family.save(folder)
        self.folder = folder
        red, blue = family.images(2)
        self.prompts: list[list[Part]] = [
            [[3, 4, 5], red, [6, 7]],
            [[3, 4, 5], blue, [6, 7]],
            [blue, [9], red, [8, 9, 10, 11]],
            [[3, 4, 5], red, [6], blue, [8]],
        ]
        self.answers = [family.expected(oracle, parts, MAX_TOKENS) for parts in self.prompts]

    def engine(self, chunk: int | None, page: int, hooks: Any = NO_HOOKS, pages: int = 0) -> Engine:
        config = engine_config(
            model_path=self.folder,
            chunk_budget=chunk,
            page_size=page,
            num_pages=pages or 1600 // page,
            max_model_len=256,
            max_running_requests=8,
            page_aligned_chunks=chunk != 13,
        )
        return Engine(config, hooks=hooks)


@pytest.fixture(scope="module", params=["smolvlm", "gemma3", "gemma4", "qwen2.5-vl", "qwen3-vl"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(request.param, tmp_path_factory.mktemp("model"))


def prefilled(source: Worker, target: Worker, id: int, parts: list[Part]) -> Request:
    """A request at the target, which has the KV of its prompt and no pixels."""
    sent = request_of(id, parts, 1)
    sent.pinned = True
    source.engine.submit(sent)
    source.engine.step()
    request = without_arrays(request_of(id, parts, MAX_TOKENS))
    reservation = reserve(target, source, request)
    while source.engine.has_work:
        source.engine.step()
        source.endpoint.poll(0.0)
    deliver(source, target, request, reservation)
    source.engine.release(sent)
    return request


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_prompts_chunk_by_chunk(model: Model, chunk: int | None, page: int) -> None:
    source, target = Worker(model, chunk, page), Worker(model, chunk, page)
    for attempt in range(2):
        for id, parts in enumerate(model.prompts):
            request = prefilled(source, target, id + 10 * attempt, parts)
            finish(target.engine)
            assert request.output == model.answers[id]
    finish(source.engine)


@pytest.mark.parametrize(("chunk", "page"), CHUNKS_AND_PAGES)
def test_running_answers(model: Model, chunk: int | None, page: int) -> None:
    source, target = Worker(model, chunk, page), Worker(model, chunk, page)
    for id, parts in enumerate(model.prompts):
        moving = request_of(id, parts, MAX_TOKENS)
        source.engine.submit(moving)
        while len(moving.output) < 6:
            source.engine.step()
        request = without_arrays(request_of(id, parts, MAX_TOKENS, output=list(moving.output)))
        moving.pinned = True
        source.sending.add(id)
        source.endpoint.sender.open(id, 0.0, 60.0, keeps_decoding=True)
        computed = source.engine.computed(moving)
        source.endpoint.sender.computed(id, source.pages(moving, computed), computed, 0.0)
        reservation = reserve(target, source, request, room=MAX_TOKENS)
        while len(moving.output) < 12:
            source.engine.step()
            source.endpoint.poll(0.0)
        moving.paused = True
        source.send_rest(moving, request.num_tokens, source.engine.computed(moving))
        deliver(source, target, request, reservation)
        source.sending.discard(id)
        source.engine.abort(id)
        finish(target.engine)
        assert request.output == model.answers[id]
    finish(source.engine)


def test_an_answer_that_loses_its_kv_fails_there_and_goes_on_elsewhere(model: Model) -> None:
    source, target = Worker(model, 48, 4), Worker(model, 48, 4)
    request = prefilled(source, target, 1, model.prompts[0])
    while len(request.output) < 5:
        target.engine.step()
    target.engine.scheduler.preempt(request)
    target.engine.kv.clear(None)
    failed = []
    while target.engine.has_work:
        failed += target.engine.step().failed
    assert [(which, type(error)) for which, error in failed] == [(request, MediaMissing)]
    known = list(request.output)
    assert known == model.answers[0][: len(known)]
    again = request_of(2, model.prompts[0], MAX_TOKENS, output=known)
    source.engine.submit(again)
    finish(source.engine)
    finish(target.engine)
    assert again.output == model.answers[0]


def test_every_worker_refuses_an_image_without_its_grid(tmp_path: Path) -> None:
    model = Model("qwen2.5-vl", tmp_path)
    engine = model.engine(48, 4)
    request = without_arrays(request_of(1, model.prompts[0]))
    request.media = tuple(replace(item, grid=()) for item in request.media)
    for take in (engine.submit, engine.reserve):
        with pytest.raises(UnservableRequest, match="grid"):
            take(request)
    assert tokens_of(model.prompts[0]) == list(request.prompt)
