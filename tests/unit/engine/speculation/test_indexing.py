"""How many tokens a step indexes for drafts, and what drafters find before all are indexed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from engine.config import SpeculationConfig
from engine.core.request import Request
from engine.sched.drafts.speculator import _INDEXED_TOKENS
from engine.speculation.drafters import _MOST_PREDICTED, EarlierAnswers, IndexBudget, NGram, Predicted
from engine.speculation.kinds import DrafterKind, DraftHints
from engine.speculation.suffix_index import SuffixIndex
from tests.oracle import speculate
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.fake_runner import reference


def test_a_long_prompt_is_indexed_over_several_steps() -> None:
    budget = IndexBudget()
    ngram, tokens = NGram(budget), [*range(1000), 100, 101, 102, 103]
    for step in range(1, 11):
        budget.left = 100
        draft = ngram.draft(tokens, len(tokens), 3)
        assert len(ngram._index) == 100 * step
        assert draft == ([] if step == 1 else [104, 105, 106])


def test_new_tokens_of_an_answer_are_indexed_though_the_budget_is_used_up() -> None:
    ngram, tokens = NGram(IndexBudget(0)), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4]
    assert ngram.draft(tokens, 5, 2) == [5, 9]


def test_a_prediction_is_followed_before_it_is_indexed() -> None:
    prediction = list(range(1000))
    predicted = Predicted(prediction, IndexBudget(0))
    assert predicted.draft([7, *range(900)], 1, 3) == [900, 901, 902]


def test_of_a_long_prediction_only_the_beginning_is_indexed() -> None:
    prediction = [*range(_MOST_PREDICTED + 1000)]
    predicted = Predicted(prediction, IndexBudget())
    assert predicted.draft([-1, -2], 1, 3) == []
    assert len(predicted._index) == _MOST_PREDICTED
    assert predicted.draft([-1, -2, 500, 501, 502], 1, 2) == [503, 504]


def test_requests_without_a_prediction_cost_nothing_where_only_predictions_are_drafted() -> None:
    engine = make_engine(max_model_len=200)
    speculate(engine, SpeculationConfig(drafters=frozenset({DrafterKind.PREDICTION}), adaptive=False))
    speculator = engine.scheduler.speculator
    assert speculator is not None
    plain, predicting = (make_request(id, [id] * 5, 12, ignore_eos=True) for id in (1, 2))
    expected = [reference(request.prompt, 12, ignore_eos=True) for request in (plain, predicting)]
    predicting.hints = DraftHints(prediction=expected[1])
    engine.submit(plain)
    for _ in range(4):
        engine.step()
        assert not speculator._drafting
    engine.submit(predicting)
    while engine.has_work:
        engine.step()
        assert speculator._drafting.keys() <= {predicting.id}
    assert [plain.output, predicting.output] == expected
    assert speculator.counts.accepted


def test_earlier_answers_wait_for_their_turn_and_at_most_the_newest_are_kept() -> None:
    budget = IndexBudget(0)
    answers = EarlierAnswers(200, budget)
    for number in range(50):
        answers.add(range(1000 * number, 1000 * number + 20))
    assert len(answers._added) == 200
    budget.left = 1000
    assert answers.continuation([49000, 49001, 49002, 49003], 2) == [49004, 49005]
    assert not answers.continuation([1000, 1001, 1002, 1003], 2)


def test_a_step_indexes_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed = 0
    extend = SuffixIndex.extend

    def counted(self: SuffixIndex, tokens: Iterable[int]) -> None:
        nonlocal indexed
        known = [*tokens]
        indexed += len(known)
        extend(self, known)

    monkeypatch.setattr(SuffixIndex, "extend", counted)
    engine = make_engine(page_size=64, num_pages=400, chunk_budget=20_000, max_model_len=8000)
    speculate(engine, SpeculationConfig(adaptive=False))
    requests: list[Request] = []
    for number in range(4):
        prompt = [(number + place * place) % 90 for place in range(5000)]
        requests.append(make_request(number, prompt, 6, ignore_eos=True))
        requests[-1].hints = DraftHints(prediction=prompt)
        engine.submit(requests[-1])
    while engine.has_work:
        indexed = 0
        engine.step()
        assert indexed <= _INDEXED_TOKENS + 4 * 3 * 16
    for request in requests:
        assert request.output == reference(request.prompt, 6, ignore_eos=True)
