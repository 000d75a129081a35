"""How often a plan searches the tiers for what they have of waiting requests: each search is O(tokens)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.config import Policy
from engine.core.request import Request
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.page_tiers import PageTiers
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.engine.kv.tiers.test_groups_on_tiers import FIRST, evict, windowed
from tests.unit.engine.kv.tiers.tiered import Tiered


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Searches of the cache for what a request lacks, by its id."""
    counts: Counter[int] = Counter()
    missing = PageTiers._missing

    def counted(self: PageTiers, request: Request) -> Any:
        counts[request.id] += 1
        return missing(self, request)

    monkeypatch.setattr(PageTiers, "_missing", counted)
    return counts


def prompt_of(number: int) -> list[int]:
    return [number, *range(30, 46)]


def test_a_plan_searches_for_few_requests_while_none_has_room(searched: Counter[int]) -> None:
    tiered = Tiered(num_pages=16, host_slots=400)
    for number in range(40):
        tiered.answer(make_request(number, prompt_of(number), 2))
    tiered.engine.submit(make_request(50, [77] * 24, 30, ignore_eos=True))
    tiered.engine.step()
    waiting = [make_request(100 + number, [*prompt_of(number), 9], 2) for number in range(40)]
    for request in waiting:
        tiered.engine.submit(request)
    for _ in range(4):
        searched.clear()
        tiered.engine.step()
        assert 0 < searched.total() <= 10
    for _ in range(400):
        tiered.engine.step()
        tiered.copier.work(disk=False)
    assert all(request.finish is not None for request in waiting)
    assert sum(request.num_cached == 16 for request in waiting) > 30
    tiered.copy_all()


def test_a_request_whose_kv_is_under_way_is_not_searched_for_at_every_copy(searched: Counter[int]) -> None:
    tiered = Tiered(num_pages=24)
    tiered.answer(make_request(1, prompt_of(0), 2))
    evict(tiered)
    tiered.engine.submit(make_request(7, [*prompt_of(0), 9], 2))
    tiered.engine.step()
    searched.clear()
    for _ in range(5):
        tiered.tiers.version += 1  # a copy for another one has ended
        tiered.engine.step()
    assert searched[7] == 0
    tiered.copier.work(disk=False)
    tiered.engine.step()
    assert searched[7] > 0


def test_tiers_are_searched_once_for_a_prefix_that_they_cannot_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiers have only the pages of a window at the end of the whole prompt."""
    tiered = windowed()
    tiered.answer(make_request(1, FIRST, 2))
    evict(tiered)
    asked: list[Any] = []
    has = type(tiered.tiers).__contains__

    def counted(self: Any, key: Any) -> bool:
        asked.append(key)
        return has(self, key)

    monkeypatch.setattr(type(tiered.tiers), "__contains__", counted)
    request = make_request(9, [*FIRST[:16], 90, 91], 2)
    tiers = tiered.engine.kv.tiers
    assert tiers is not None
    tiers.prospect(request, 100, 0.0)
    assert asked
    asked.clear()
    for _ in range(3):
        tiers.prospect(request, 100, 0.0)
    assert not asked
    tiered.tiers.version += 1
    tiers.prospect(request, 100, 0.0)
    assert asked


def test_long_prompts_that_are_held_back_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(
        num_pages=200,
        policy=Policy.FCFS,
        long_prefill_token_threshold=6,
        max_long_partial_prefills=1,
        chunk_budget=16,
    )
    for number in range(20):
        engine.submit(make_request(number, [number] * 40, 2))
    looked_up: list[int] = []
    cached_tokens = KVManager.cached_tokens

    def counted(self: KVManager, request: Request) -> int:
        looked_up.append(request.id)
        return cached_tokens(self, request)

    monkeypatch.setattr(KVManager, "cached_tokens", counted)
    engine.step()
    engine.step()
    assert len(looked_up) <= 2
