"""Log-probabilities of prompt tokens equal transformers', wherever and however the prompt is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from engine.core.request import Request
from engine.core.sampling_params import PromptLogprobs, SamplingParams
from engine.errors import NotFinite, UnservableRequest
from engine.loop.engine import Engine
from engine.loop.hooks import NO_HOOKS
from engine.sampling import scoring
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

TOP = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny-llama")


@pytest.fixture(scope="module")
def oracle(folder: Path) -> LlamaForCausalLM:
    return save_tiny_llama(folder)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@dataclass
class Row:
    logprob: float
    rank: int
    top: dict[int, float]


def expected(oracle: PreTrainedModel, prompt: Sequence[int], top: int = TOP) -> list[Row]:
    with torch.no_grad():
        logprobs = oracle(torch.tensor([list(prompt)])).logits[0].log_softmax(-1)
    rows = []
    for row, token in zip(logprobs[:-1], prompt[1:], strict=True):
        values, ids = row.topk(top)
        rank = 1 + int((row > row[token]).sum())
        rows.append(Row(float(row[token]), rank, dict(zip(ids.tolist(), values.tolist(), strict=True))))
    return rows


def rows_of(parts: Sequence[PromptLogprobs]) -> list[Row]:
    """Rows of parts that follow each other without gaps."""
    rows: list[Row] = []
    for part in parts:
        assert part.position == 1 + len(rows)
        for i, (logprob, rank) in enumerate(zip(part.logprobs, part.ranks, strict=True)):
            at = slice(i * part.num_top, (i + 1) * part.num_top)
            top = dict(zip(part.top_ids[at], part.top_logprobs[at], strict=True))
            rows.append(Row(logprob, rank, top))
    return rows


def assert_same(found: list[Row], oracle: list[Row], *, atol: float = 2e-5) -> None:
    assert [row.rank for row in found] == [row.rank for row in oracle]
    assert [list(row.top) for row in found] == [list(row.top) for row in oracle]
    values = [[row.logprob, *row.top.values()] for row in found]
    torch.testing.assert_close(
        torch.tensor(values),
        torch.tensor([[r.logprob, *r.top.values()] for r in oracle]),
        rtol=1e-5,
        atol=atol,
    )


@dataclass
class Driven:
    engine: Engine
    scored: dict[int, list[PromptLogprobs]] = field(default_factory=dict)
    first_token_at: dict[int, int] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.engine.submit(request)
        while self.engine.has_work:
            self.step()
        pages = self.engine.check_pages()
        assert pages.free + pages.cached == pages.total

    def step(self) -> None:
        output = self.engine.step()
        for request, scores in output.outputs:
            assert request.id not in self.first_token_at, "scores come before the first token"
            self.scored.setdefault(request.id, []).append(scores)
        for token in output.tokens:
            self.first_token_at.setdefault(token.request.id, token.position)
        self.errors |= {request.id: error for request, error in output.failed}


def engine_of(folder: Path, hooks: Any = NO_HOOKS, **settings: Any) -> Engine:
    return Engine(make_config(folder, **settings), hooks=hooks)


def scored(id: int, prompt: list[int], max_tokens: int = 1, top: int = TOP, **more: Any) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, prompt_logprobs=top, ignore_eos=True, **more)
    return Request(id, prompt, sampling)


def plain(id: int, prompt: list[int], max_tokens: int = 6) -> Request:
    return Request(id, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 7, 16, None])
def test_whatever_the_chunks(
    folder: Path, oracle: LlamaForCausalLM, chunk: int | None, overlap: bool
) -> None:
    driven = Driven(engine_of(folder, chunk_budget=chunk, overlap=overlap))
    prompts = [prompt_of(length, length) for length in (1, 2, 5, 23, 40)]
    driven.run(*(scored(id, prompt) for id, prompt in enumerate(prompts)))
    for id, prompt in enumerate(prompts):
        assert_same(rows_of(driven.scored.get(id, [])), expected(oracle, prompt))


def test_beside_decodes_and_prompts_that_are_not_scored(folder: Path, oracle: LlamaForCausalLM) -> None:
    alone, mixed = Driven(engine_of(folder)), Driven(engine_of(folder, chunk_budget=11))
    others = [prompt_of(length, 50 + length) for length in (9, 30, 17)]
    expected_output = []
    for id, prompt in enumerate(others):
        request = plain(id, prompt, 20)
        alone.run(request)
        expected_output.append(request.output)
    requests = [plain(id, prompt, 20) for id, prompt in enumerate(others)]
    for request in requests[:2]:
        mixed.engine.submit(request)
    mixed.step()
    prompts = {10: prompt_of(37, 1), 11: prompt_of(8, 2)}
    mixed.run(*(scored(id, prompt, 4, top=id - 8) for id, prompt in prompts.items()), requests[2])
    assert [request.output for request in requests] == expected_output
    for id, prompt in prompts.items():
        assert_same(rows_of(mixed.scored[id]), expected(oracle, prompt, id - 8))
    assert mixed.scored.keys() == prompts.keys()


def test_a_cached_prompt_is_computed_again_and_only_for_who_asks(
    folder: Path, oracle: LlamaForCausalLM
) -> None:
    driven, prompt = Driven(engine_of(folder, chunk_budget=7)), prompt_of(33)
    driven.run(plain(0, prompt))
    first, again, third = scored(1, prompt), plain(2, prompt), scored(3, prompt[:20] + prompt_of(9, 7))
    driven.run(first)
    driven.run(again)
    driven.run(third)
    assert (first.num_cached, again.num_cached, third.num_cached) == (0, 32, 0)
    assert_same(rows_of(driven.scored[1]), expected(oracle, prompt))
    assert_same(rows_of(driven.scored[3]), expected(oracle, list(third.prompt)))


def test_many_with_one_prefix_share_a_step(folder: Path, oracle: LlamaForCausalLM) -> None:
    """None of them can use the others' KV, so none waits for it."""
    driven = Driven(engine_of(folder, chunk_budget=128))
    prompts = [prompt_of(24) + prompt_of(3, seed) for seed in range(1, 5)]
    for id, prompt in enumerate(prompts):
        driven.engine.submit(scored(id, prompt))
    driven.step()
    driven.step()
    assert len(driven.scored) == 4
    driven.run()
    for id, prompt in enumerate(prompts):
        assert_same(rows_of(driven.scored[id]), expected(oracle, prompt))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_preempted_prompt_continues_without_repeating_a_score(
    folder: Path, oracle: LlamaForCausalLM, overlap: bool
) -> None:
    """The pool is too small for all answers; scores that were reported are not computed again."""
    driven = Driven(engine_of(folder, num_pages=18, chunk_budget=5, overlap=overlap))
    prompts = [prompt_of(length, length) for length in (19, 22, 17, 21)]
    requests = [scored(id, prompt, 24) for id, prompt in enumerate(prompts)]
    for request in requests:
        driven.engine.submit(request)
    preempted = 0
    while driven.engine.has_work:
        driven.step()
        reading = [r for r in driven.engine.scheduler.running if 0 < r.num_scored < r.scores_until]
        if reading and preempted < 3:
            driven.engine.scheduler.preempt(reading[0])
            preempted += 1
    assert preempted == 3
    for id, prompt in enumerate(prompts):
        assert_same(rows_of(driven.scored[id]), expected(oracle, prompt))
        with torch.no_grad():
            tokens = torch.tensor([prompt])
            for _ in range(24):
                tokens = torch.cat([tokens, oracle(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
        assert requests[id].output == tokens[0, len(prompt) :].tolist()


def test_an_attempt_continues_after_the_scores_of_another(folder: Path, oracle: LlamaForCausalLM) -> None:
    driven, prompt = Driven(engine_of(folder)), prompt_of(30)
    driven.run(plain(0, prompt))
    request = scored(1, prompt)
    request.num_scored = 13
    driven.run(request)
    assert request.num_cached == 12
    [part] = driven.scored[1]
    assert part.position == 14
    assert_same(rows_of([PromptLogprobs(1, *_columns(part))]), expected(oracle, prompt)[13:])


def _columns(part: PromptLogprobs) -> Iterator[Any]:
    return iter((part.logprobs, part.ranks, part.num_top, part.top_ids, part.top_logprobs))


def test_logits_are_never_computed_for_more_rows_than_a_block(
    folder: Path, oracle: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_BLOCK_ROWS", 8)
    driven, prompt, rows = Driven(engine_of(folder, chunk_budget=None)), prompt_of(61), []
    model: Any = driven.engine.runner._model
    compute = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or compute(hidden))
    driven.run(scored(0, prompt))
    assert rows == [8] * 7 + [4] + [1]
    assert_same(rows_of(driven.scored[0]), expected(oracle, prompt))


def test_steps_without_scored_prompts_compute_one_row_of_logits_a_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven, rows = Driven(engine_of(folder, chunk_budget=8)), []
    model: Any = driven.engine.runner._model
    compute = model.logits
    monkeypatch.setattr(model, "logits", lambda hidden: rows.append(len(hidden)) or compute(hidden))
    driven.run(plain(0, prompt_of(30), 5))
    assert rows == [1] * 5


def test_logits_that_are_not_finite_fail_the_request_that_asks(folder: Path) -> None:
    driven = Driven(engine_of(folder))
    model: Any = driven.engine.runner._model
    with torch.inference_mode():
        model.embed.weight[5] = torch.nan
    good, bad = prompt_of(12), prompt_of(12, 3)
    bad[3] = 5
    good = [token if token != 5 else 6 for token in good]
    driven.run(scored(0, good), scored(1, bad))
    assert driven.errors.keys() == {1}
    assert isinstance(driven.errors[1], NotFinite)
    assert 1 not in driven.scored
    assert len(rows_of(driven.scored[0])) == 11


def test_a_prompt_that_is_not_scored_has_no_output_yet(folder: Path) -> None:
    continued = scored(1, prompt_of(5), max_tokens=4)
    continued.output.append(7)
    with pytest.raises(UnservableRequest, match="before the first token"):
        engine_of(folder).submit(continued)
