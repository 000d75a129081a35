"""A prompt that is scored reuses cached pages that own log-probabilities, and they equal transformers'."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from engine.core.request import Request
from tests.unit.engine.loop.test_prompt_logprobs import (
    Driven,
    assert_same,
    engine_of,
    expected,
    plain,
    prompt_of,
    rows_of,
    scored,
)
from tests.unit.tiny import save_tiny_llama

PAGE = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-llama")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> LlamaForCausalLM:
    return save_tiny_llama(folder)


def assert_right(driven: Driven, oracle: LlamaForCausalLM, request: Request) -> None:
    top = request.sampling.prompt_logprobs or 0
    assert_same(rows_of(driven.scored.get(request.id, [])), expected(oracle, list(request.prompt), top))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 7, 16, None])
@pytest.mark.parametrize("top", [0, 1])
def test_all_but_the_last_cached_block_is_reused(
    folder: Path, oracle: LlamaForCausalLM, top: int, chunk: int | None, overlap: bool
) -> None:
    driven = Driven(engine_of(folder, chunk_budget=chunk, overlap=overlap))
    prompt = prompt_of(32)
    requests = [
        scored(0, prompt, top=top),
        scored(1, prompt, top=1 - top),
        scored(2, prompt + prompt_of(9, 5), top=top),
        scored(3, prompt[:13] + prompt_of(20, 6), top=top),
        scored(4, prompt, max_tokens=0, top=top),
    ]
    for request in requests:
        driven.run(request)
        assert_right(driven, oracle, request)
    assert [request.num_cached for request in requests] == [0, 28, 28, 8, 28]


def test_a_later_request_reuses_what_a_hit_has_added(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven, prompt = Driven(engine_of(folder, chunk_budget=7)), prompt_of(48)
    for id, length in enumerate((16, 31, 48, 48)):
        request = scored(id, prompt[:length], top=id % 2)
        driven.run(request)
        assert_right(driven, oracle, request)
    assert request.num_cached == 44


def test_pages_of_a_plain_request_have_no_rows_until_a_scored_one_computes_them(
    folder: Path, oracle: LlamaForCausalLM
) -> None:
    driven, prompt = Driven(engine_of(folder, chunk_budget=7)), prompt_of(32)
    driven.run(plain(0, prompt))
    requests = [scored(id, prompt, top=0) for id in (1, 2)]
    for request in requests:
        driven.run(request)
        assert_right(driven, oracle, request)
    assert [request.num_cached for request in requests] == [0, 28]


def test_more_alternatives_than_pages_keep_are_computed(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven, prompt = Driven(engine_of(folder)), prompt_of(32)
    requests = [scored(0, prompt, top=1), scored(1, prompt, top=2), scored(2, prompt, top=1)]
    for request in requests:
        driven.run(request)
        assert_right(driven, oracle, request)
    assert [request.num_cached for request in requests] == [0, 0, 28]


def test_generated_tokens_have_no_rows(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven, prompt = Driven(engine_of(folder)), prompt_of(16)
    first = scored(0, prompt, max_tokens=20, top=0)
    driven.run(first)
    turn = scored(1, [*prompt, *first.output, *prompt_of(5, 3)], top=0)
    driven.run(turn)
    assert turn.num_cached == 12
    assert_right(driven, oracle, turn)


def test_a_reused_page_forgets_its_rows(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven = Driven(engine_of(folder, num_pages=12, chunk_budget=7))
    prompts = [prompt_of(32, seed) for seed in range(3)]
    for id in range(9):
        request = (scored if id % 3 else plain)(id, prompts[id % 2], 1)
        driven.run(request)
        if id % 3:
            assert_right(driven, oracle, request)
    again = [scored(id, prompts[0], top=0) for id in (20, 21)]
    for request in again:
        driven.run(request)
        assert_right(driven, oracle, request)


def test_a_block_that_is_evicted_while_it_is_computed_again_keeps_its_rows(
    folder: Path, oracle: LlamaForCausalLM
) -> None:
    driven, prompt = Driven(engine_of(folder, chunk_budget=PAGE, overlap=True)), prompt_of(32)
    driven.run(scored(0, prompt, top=0))
    second, third = (scored(id, prompt + prompt_of(9, 5), top=0) for id in (1, 2))
    driven.engine.submit(second)
    driven.step()
    assert driven.engine.kv.clear(None) == 1
    driven.run()
    driven.run(third)
    for request in (second, third):
        assert_right(driven, oracle, request)
    assert (second.num_cached, third.num_cached) == (28, 36)


def test_requests_that_want_one_prefix_together(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven, prompt = Driven(engine_of(folder, chunk_budget=9)), prompt_of(24)
    requests = [scored(id, prompt + prompt_of(3 * id, id), top=id % 2) for id in range(5)]
    driven.run(*requests)
    for request in requests:
        assert_right(driven, oracle, request)


@pytest.mark.parametrize("overlap", [False, True])
def test_preemption_beside_hits(folder: Path, oracle: LlamaForCausalLM, overlap: bool) -> None:
    driven = Driven(engine_of(folder, num_pages=24, chunk_budget=5, overlap=overlap))
    prompt, preempted = prompt_of(20), 0
    driven.run(scored(100, prompt, top=0))
    requests = [scored(id, prompt + prompt_of(7 + id, id), 12, top=id % 2) for id in range(4)]
    for request in requests:
        driven.engine.submit(request)
    while driven.engine.has_work:
        driven.step()
        reading = [r for r in driven.engine.scheduler.running if 0 < r.num_scored < r.scores_until]
        if reading and preempted < 5:
            driven.engine.scheduler.preempt(reading[-1])
            preempted += 1
    assert preempted == 5
    for request in requests:
        assert_right(driven, oracle, request)
