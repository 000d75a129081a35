"""Prompts with images whose rows another engine computes: their text is computed before the rows are here."""

from __future__ import annotations

from typing import Any

import pytest

from engine.core.request import Request
from engine.loop.engine import Engine
from tests.integration.models.test_every_architecture import finish
from tests.integration.models.test_images_handed_over import MAX_TOKENS, Model, model
from tests.unit.engine.media.vlms import Part, request_of, without_arrays

__all__ = ["model"]


def awaiting(engine: Engine, id: int, parts: list[Part]) -> Request:
    """A request without pixels, all of whose rows come from elsewhere."""
    request = without_arrays(request_of(id, parts, MAX_TOKENS))
    media: Any = engine.runner
    request.awaits = {item.digest for item in request.media if not media.media.has(item.digest)}
    engine.submit(request)
    return request


def arrive(engine: Engine, other: Engine, request: Request, parts: list[Part], index: int) -> None:
    """The rows of one image come from the other engine."""
    here: Any = engine.runner
    there: Any = other.runner
    item = request_of(request.id, parts).media[index]
    rows, _ = there.media.encode(item)
    here.media.keep(item.digest, rows)
    request.awaits.discard(item.digest)


def run_dry(engine: Engine) -> None:
    """Compute what can be computed."""
    while (output := engine.step()).num_tokens or output.completed:
        pass


@pytest.mark.parametrize(("chunk", "page"), [(9, 1), (13, 4), (None, 4)])
def test_the_text_is_computed_up_to_each_image_and_answers_are_transformers(
    model: Model, chunk: int | None, page: int
) -> None:
    engine, other = model.engine(chunk, page), model.engine(48, 4)
    for id, parts in enumerate(model.prompts):
        request = awaiting(engine, id, parts)
        for index, item in enumerate(request.media):
            run_dry(engine)
            if item.digest in request.awaits:
                assert request.num_computed == item.offset
                assert not request.output
                arrive(engine, other, request, parts, index)
        finish(engine)
        assert request.output == model.answers[id]
    engine.check_pages()


def test_other_prompts_go_on_beside_one_that_waits_for_rows(model: Model) -> None:
    engine, other = model.engine(13, 4), model.engine(48, 4)
    waiting = awaiting(engine, 1, model.prompts[2])
    run_dry(engine)
    plain = request_of(2, model.prompts[0], MAX_TOKENS)
    engine.submit(plain)
    run_dry(engine)
    assert plain.output == model.answers[0]
    assert not waiting.output
    for index in range(len(waiting.media)):
        arrive(engine, other, waiting, model.prompts[2], index)
    finish(engine)
    assert waiting.output == model.answers[2]


def test_a_waiting_request_is_preempted_and_aborted_like_any_other(model: Model) -> None:
    engine, other = model.engine(13, 4), model.engine(48, 4)
    parts = model.prompts[3]
    request, aborted = awaiting(engine, 1, parts), awaiting(engine, 2, parts)
    run_dry(engine)
    assert engine.abort(aborted.id)
    engine.scheduler.preempt(request)
    run_dry(engine)
    assert request.num_computed == request.media[0].offset
    for index in range(len(request.media)):
        arrive(engine, other, request, parts, index)
    finish(engine)
    assert request.output == model.answers[3]
    engine.check_pages()
