"""Predictions of when prompts are computed, and which split of workers suits a load."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import PATIENCE
from router.placement import Demand, Drafting, Preference, StepTime, Targets, WorkerView
from router.placement.policies.predict import Pace, miss, pace_of, prefill_times
from router.placement.policies.prefill_pool import PrefillPool, expected_misses, with_running_answers

PACE = Pace(plain_s=0.005, mixed_s=0.05, mixed_tokens=2048)
PROMPTS = st.lists(st.integers(1, 20_000), min_size=1, max_size=40)


def worker(name: str, prefers: Preference = Preference.BOTH, decodes: int = 0) -> WorkerView:
    return WorkerView(
        id=name,
        prefers=prefers,
        step_time=StepTime(),
        chunk_tokens=2048,
        step_target_s=0.014,
        decodes=decodes,
        context_tokens=3000 * decodes,
        available_pages=50_000,
        total_pages=50_000,
        page_size=16,
    )


def test_drafts_lengthen_a_step_by_their_rows_and_shorten_the_time_between_tokens() -> None:
    plain = worker("plain", decodes=60)
    drafts = replace(plain, drafting=Drafting(rows=5.0, tokens=2.5))
    steps = pace_of(plain, 60, 180_000, 1000.0), pace_of(drafts, 60, 180_000, 1000.0)
    rows = pace_of(plain, 300, 5 * 180_000, 1000.0)
    assert steps[1].plain_s == rows.plain_s > steps[0].plain_s
    assert steps[1].mixed_tokens == rows.mixed_tokens
    for reading in (0.0, 0.5, 1.0):
        assert steps[1].tpot(reading) == pytest.approx(rows.tpot(reading) / 2.5)
    assert steps[1].token_s == steps[1].tpot(0.0)


@given(PROMPTS)
def test_the_last_prompt_ends_when_all_tokens_are_computed(pending: list[int]) -> None:
    times = prefill_times(pending, PACE)
    assert max(times) == pytest.approx(sum(pending) / PACE.prefill_rate)
    for tokens, seconds in zip(pending, times, strict=True):
        assert seconds >= tokens / PACE.prefill_rate * (1 - 1e-9)


@given(PROMPTS)
def test_a_prompt_ends_before_longer_ones_that_came_later(pending: list[int]) -> None:
    times = prefill_times(pending, PACE)
    for index, tokens in enumerate(pending):
        assert all(times[index] <= times[j] for j in range(index + 1, len(pending)) if pending[j] >= tokens)


def test_a_prompt_is_predicted_to_let_so_many_tokens_pass_as_the_scheduler_lets() -> None:
    crowd = [200] * 700
    times = prefill_times([2000, *crowd], PACE)
    passed = sum(tokens for tokens, end in zip(crowd, times[1:], strict=True) if end < times[0])
    assert 0.85 * PATIENCE * 2000 < passed <= PATIENCE * 2000


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    long, short = prefill_times([16_000, 200], PACE)
    assert short == pytest.approx(PACE.mixed_s)
    assert long == pytest.approx(16_200 / PACE.prefill_rate)


def test_a_worker_with_decodes_computes_fewer_prompt_tokens() -> None:
    prefill_worker = worker("a")
    alone, beside = (pace_of(prefill_worker, decodes, 3000.0 * decodes, 1000.0) for decodes in (0, 40))
    assert alone.mixed_tokens == 2048
    assert beside.mixed_s == pytest.approx(0.014, rel=0.01)
    assert beside.prefill_rate < alone.prefill_rate


@given(st.floats(0.0, 10.0), st.floats(0.0, 10.0))
def test_a_longer_time_never_misses_less(one: float, other: float) -> None:
    shorter, longer = sorted((one, other))
    assert 0.0 <= miss(shorter, 0.1) <= miss(longer, 0.1) <= 1.0


DEMAND = Demand(requests_per_s=7.0, prompt_tokens=2800, attention=7e6, context_tokens=3000, output_tokens=320)
TIGHT = Targets(0.5, 0.015)


def test_more_load_is_never_better() -> None:
    workers = [worker(name) for name in "ab"]
    costs = [
        expected_misses(workers[:1], workers[1:], Demand(rate, 2800, 7e6, 3000, 320), TIGHT)
        for rate in (1.0, 4.0, 8.0, 12.0, 16.0, 24.0)
    ]
    assert costs == sorted(costs)


MIXED_ROLES = [worker("a", Preference.PREFILL), worker("b", Preference.DECODE)]


def divided(*, now: float = 100.0) -> PrefillPool:
    """Has reserved "a" for prompts by `now`, since that suits `DEMAND`."""
    pool = PrefillPool(TIGHT)
    for turn in range(100):
        pool.prefill_workers(MIXED_ROLES, DEMAND, now - 100.0 + turn)
    assert pool.current == {"a"}
    return pool


def test_no_worker_is_reserved_for_prompts_before_the_load_asks_for_it() -> None:
    assert PrefillPool(TIGHT).prefill_workers(MIXED_ROLES, Demand(), 0.0) == set()


def test_the_worker_that_is_reserved_is_one_that_prefers_prompts() -> None:
    assert divided().current == {"a"}


@given(st.lists(st.tuples(st.integers(1, 4), st.floats(0.5, 60.0)), min_size=1, max_size=40))
def test_never_all_workers_are_reserved(loads: list[tuple[int, float]]) -> None:
    pool = PrefillPool(TIGHT)
    for turn, (count, rate) in enumerate(loads):
        workers = [worker(name, Preference.PREFILL) for name in "abcd"[:count]]
        demand = Demand(rate, 2800, 7e6, 3000, 320)
        assert len(pool.prefill_workers(workers, demand, 10.0 * turn)) < count


def test_a_division_that_suits_the_load_is_kept() -> None:
    workers = [worker("a", Preference.PREFILL), worker("b", Preference.DECODE, decodes=20)]
    pool = divided()
    seen = {pool.prefill_workers(workers, DEMAND, 100.0 + 0.1 * turn) for turn in range(300)}
    assert seen == {frozenset({"a"})}


def test_answers_that_run_count_before_the_first_of_them_has_ended() -> None:
    """A step takes 7 ms: 100 decodes are 14,000 tokens a second."""
    demand = Demand(20.0, 300, 5e4, 700, output_tokens=100)
    idle, busy = worker("a"), replace(worker("b"), decodes=100, context_tokens=20_000)
    assert with_running_answers(demand, [idle]).output_tokens == 100
    assert 500 < with_running_answers(demand, [idle, busy]).output_tokens < 1000
    long = replace(demand, output_tokens=2000.0)
    assert with_running_answers(long, [idle, busy]) == long


def test_it_takes_as_long_as_an_answer_to_change_a_division() -> None:
    """Answers of 2,000 tokens and short prompts: decodes need all workers."""
    workers = [worker("a", Preference.PREFILL), worker("b", Preference.DECODE, decodes=80)]
    demand = Demand(
        requests_per_s=8.0, prompt_tokens=200, attention=2e4, context_tokens=3000, output_tokens=2000
    )
    pool = divided(now=0.0)
    history = [pool.prefill_workers(workers, demand, 0.5 * turn) for turn in range(200)]
    changes = [turn for turn in range(1, 200) if history[turn] != history[turn - 1]]
    assert history[0] == {"a"}
    assert history[-1] == frozenset()
    assert len(changes) == 1
    assert 0.5 * changes[0] >= 0.7 * demand.output_tokens * TIGHT.tpot_s


def test_a_worker_that_joins_changes_no_other_ones_part() -> None:
    pool = divided()
    joined = [*MIXED_ROLES, worker("c", Preference.PREFILL)]
    assert pool.prefill_workers(joined, Demand(), 101.0) == {"a"}
    assert pool.prefill_workers(MIXED_ROLES[1:], Demand(), 102.0) == set()


@given(st.integers(1, 200), st.floats(0.02, 0.05))
def test_a_pause_target_bounds_the_prompt_tokens_that_a_worker_with_decodes_computes(
    decodes: int, pause: float
) -> None:
    view = replace(worker("a"), step_target_s=None, pause_target_s=pause)
    pace = pace_of(view, decodes, 1000.0 * decodes, 1000.0)
    assert 64 <= pace.mixed_tokens <= 2048 - decodes
    assert pace.mixed_s <= pause * 1.01
    assert pace_of(view, 0, 0.0, 1000.0).mixed_tokens == 2048


@given(st.integers(1, 400), st.floats(0.005, 0.05))
def test_prompts_beside_decodes_hold_the_mean_of_steps_at_the_target(decodes: int, target: float) -> None:
    view = replace(worker("a"), step_target_s=target)
    pace = pace_of(view, decodes, 1000.0 * decodes, 1000.0)
    assert pace.mixed_tokens > 0
    assert pace.mixed_s <= max(target, 1.5 * pace.plain_s) * (1 + 1e-9)
    assert pace.tpot(1.0) == pytest.approx(pace.mixed_s)


@given(st.floats(1.0, 10.0), st.integers(1, 64), st.booleans())
def test_slow_decodes_leave_prompts_a_third_of_the_time(slower: float, decodes: int, spaced: bool) -> None:
    """As in the schedulers of mixed and of adaptive workers."""
    plain = pace_of(worker("a"), decodes, 1000.0 * decodes, 1000.0).plain_s
    target = 0.99 * plain
    view = replace(
        worker("a"),
        step_time=StepTime().scaled(slower),
        step_target_s=target,
        pause_target_s=1.6 * target if spaced else None,
    )
    pace = pace_of(view, decodes, 1000.0 * decodes, 1000.0)
    assert pace.plain_s == pytest.approx(slower * plain)
    assert pace.mixed_s == pytest.approx(1.5 * pace.plain_s)
    assert pace.mixed_tokens > 64
