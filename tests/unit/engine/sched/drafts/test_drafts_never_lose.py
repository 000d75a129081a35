"""Drafts raise tokens a second or leave them as they are, whoever drafts and whatever a row costs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from engine.config import SpeculationConfig
from engine.speculation.kinds import DrafterKind
from tests.unit.engine.sched.drafts.simulated import Machine, a_cpu, a_large_model, an_h200, tokens_a_second

MACHINES = {"cpu": a_cpu, "h200": an_h200}
DRAFTERS: dict[str, dict[str, Any]] = {
    "always wrong": {"acceptance": 0.0},
    "0.3": {"acceptance": 0.3},
    "0.5": {"acceptance": 0.5},
    "0.7": {"acceptance": 0.7},
    "now and then": {"acceptance": 0.5, "presence": 0.15},
    "a wrong model": {"acceptance": 0.0, "model": True},
    "a slow model": {"acceptance": 0.7, "model": True},
}


@cache
def without_drafts(machine: str, batch: int, answer: int) -> float:
    return tokens_a_second(MACHINES[machine](), batch, acceptance=None, answer=answer)


def ratio(machine: str, batch: int, answer: int = 200, **drafter: Any) -> float:
    drafting = tokens_a_second(MACHINES[machine](), batch, answer=answer, **drafter)
    return drafting / without_drafts(machine, batch, answer)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
@pytest.mark.parametrize("machine", MACHINES)
def test_drafts_never_lose(machine: str, batch: int, drafter: str) -> None:
    assert ratio(machine, batch, **DRAFTERS[drafter]) >= 0.97


@pytest.mark.parametrize("drafter", ["0.3", "a slow model"])
@pytest.mark.parametrize("machine", MACHINES)
def test_nor_do_they_where_most_steps_have_prompts(machine: str, drafter: str) -> None:
    assert ratio(machine, 64, answer=48, **DRAFTERS[drafter]) >= 0.97


@pytest.mark.parametrize(
    ("machine", "batch", "acceptance", "least"),
    [
        ("cpu", 1, 0.7, 1.35),
        ("cpu", 4, 0.95, 1.25),
        ("h200", 1, 0.7, 1.9),
        ("h200", 4, 0.5, 1.15),
        ("h200", 16, 0.7, 1.3),
        ("h200", 64, 0.7, 1.25),
        ("h200", 64, 0.95, 2.0),
    ],
)
def test_drafts_that_are_often_right_win(machine: str, batch: int, acceptance: float, least: float) -> None:
    assert ratio(machine, batch, acceptance=acceptance) >= least


def test_a_model_whose_steps_exceed_the_itl_target_without_drafts_drafts_too() -> None:
    plain = tokens_a_second(a_large_model(), 4, acceptance=None, itl_target_s=0.02)
    assert tokens_a_second(a_large_model(), 4, acceptance=0.7, itl_target_s=0.02) >= 1.4 * plain


def test_no_draft_is_longer_than_allowed() -> None:
    drafts = frozenset({DrafterKind.NGRAM})
    config = SpeculationConfig(drafters=drafts, num_draft_tokens=2)
    assert tokens_a_second(a_cpu(), 1, acceptance=0.9, config=config) > 0


def test_a_slow_step_now_and_then_is_no_cost_of_drafts() -> None:
    """One in forty takes twenty times as long, with or without drafts."""
    for seed in range(3):
        plain = tokens_a_second(hiccups(), 1, acceptance=None, steps=800)
        assert tokens_a_second(hiccups(), 1, acceptance=0.8, steps=800, seed=seed) > 1.3 * plain


def hiccups() -> Machine:
    return replace(an_h200(), hiccups=0.025)


@pytest.mark.parametrize("batch", [1, 4, 16])
def test_right_drafts_win_from_the_first_steps_on(batch: int) -> None:
    """Also where every draft is long, as those of predictions and models are."""
    config = SpeculationConfig(drafters=frozenset({DrafterKind.NGRAM}), num_draft_tokens=4)
    plain = tokens_a_second(an_h200(), batch, acceptance=None, steps=80)
    drafted = tokens_a_second(an_h200(), batch, acceptance=0.7, shortest=16, steps=80, config=config)
    assert drafted > 1.1 * plain
