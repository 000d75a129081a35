"""What pool and tiers serve together, against a search of every prefix."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import NO_PAGE, KVGroup, kept_places
from engine.kv.cache.page_needs import PageNeeds
from engine.kv.manager.missing_pages import MissingPages, missing_pages

SIZE = 4


def needs_of(windows: list[int | None]) -> PageNeeds:
    return PageNeeds(SIZE, [KVGroup((n,), window) for n, window in enumerate(windows)], 16)


@given(
    windows=st.lists(st.sampled_from([None, 1, 5, 8, 19]), min_size=1, max_size=3),
    known=st.integers(0, 8),
    limit=st.integers(0, 12),
    chance=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    seed=st.integers(0, 1000),
)
def test_it_is_the_longest_prefix_of_which_no_page_is_lost(
    windows: list[int | None], known: int, limit: int, chance: float, seed: int
) -> None:
    rng, needs, stride = random.Random(seed), needs_of(windows), len(windows)
    known = min(known, limit)
    here = [window is None or rng.random() < chance for _ in range(known) for window in windows]
    table = [number if there else NO_PAGE for number, there in enumerate(here)]
    stored = [rng.random() < chance for _ in range(limit * stride)]

    def places(end: int) -> list[int]:
        kept = kept_places(needs.groups, SIZE, end * SIZE, range(end))
        return [place for place in kept if place >= len(table) or table[place] == NO_PAGE]

    usable = max((end for end in range(known + 1) if not places(end)), default=0)
    ends = [end for end in range(usable + 1, limit + 1) if all(stored[place] for place in places(end))]
    found = missing_pages(needs, table, None, usable, limit, lambda b, g: stored[b * stride + g], 0)
    if not ends:
        assert found is None
        return
    end = max(ends)
    first = min([known, end, *(place // stride for place in places(end))])
    assert found is not None
    assert found == MissingPages(first, end, found.places, state=False)
    assert list(found.places) == places(end)


@pytest.mark.parametrize("holes", ["everywhere", "some"])
def test_a_tier_is_asked_once_about_each_page(holes: str) -> None:
    needs = needs_of([None, 1024, 600])
    blocks = 2000
    asked: Counter[tuple[int, int]] = Counter()

    def has(block: int, group: int) -> bool:
        asked[block, group] += 1
        return group == 0 or (holes == "some" and block % 64 != 32 * (group - 1))

    assert missing_pages(needs, [], None, 0, blocks, has, 0) is None
    assert max(asked.values()) == 1
    assert len(asked) <= 3 * blocks
