"""How a batch of decodes is cut into parts for a GPU's thread blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch.block_tables import BlockTables, starts_of
from engine.core.batch.decode_plan import DecodePlan, Decodes
from engine.core.batch.step_inputs import Ints
from engine.mixers.attention.decode_planner import DecodePlanner

AT_ONCE = 66
"""Parts that are on the GPU at once: 4 * 132 thread blocks, 8 for each part."""


def planner(page_size: int = 16) -> DecodePlanner:
    return DecodePlanner(multiprocessors=132, num_kv_heads=8, page_size=page_size)


def decodes(pages: Sequence[int] | Ints, page_size: int = 16) -> Decodes:
    """Contexts with these numbers of full pages."""
    counts = np.array(pages)
    return Decodes(counts * page_size, BlockTables(np.arange(counts.sum()), starts_of(counts)))


def part_lengths(plan: DecodePlan[Ints], pages: list[int], page_size: int = 16) -> list[int]:
    """Pages of each part, in the plan's order."""
    part_pages = int(plan.part_tokens[0]) // page_size
    return [
        min(pages[owner] - index * part_pages, part_pages)
        for owner, index in zip(plan.owners.tolist(), plan.indices.tolist(), strict=True)
    ]


some_pages = st.integers(1, 60) | st.integers(1000, 3000)


@given(st.lists(some_pages, min_size=1, max_size=80), st.sampled_from([1, 16, 256]))
def test_every_page_is_read_once_and_the_longest_parts_first(pages: list[int], page_size: int) -> None:
    plan = planner(page_size).plan(decodes(pages, page_size))
    lengths = part_lengths(plan, pages, page_size)
    assert lengths == sorted(lengths, reverse=True)
    assert min(lengths) > 0
    read = [0] * len(pages)
    for owner, length in zip(plan.owners.tolist(), lengths, strict=True):
        read[owner] += length
    assert read == pages
    parts = sorted(zip(plan.owners.tolist(), plan.indices.tolist(), strict=True))
    for request, (begin, end) in enumerate(zip(plan.first_parts, plan.first_parts[1:], strict=False)):
        assert parts[begin:end] == [(request, index) for index in range(end - begin)]
    assert len(parts) <= planner(page_size).most_parts(len(pages))
    assert not planner(page_size).keeps_whole(np.array(pages)) or len(parts) == len(pages)


@given(st.lists(some_pages, min_size=1, max_size=80))
def test_the_longest_part_is_not_much_longer_than_the_others(pages: list[int]) -> None:
    """Read alone, it takes no longer than its share of all, unless it is small anyway."""
    longest = max(part_lengths(planner().plan(decodes(pages)), pages))
    room = AT_ONCE if len(pages) <= AT_ONCE else 2 * AT_ONCE
    assert longest <= max(8, 2.5 * sum(pages) / room + 1)


def test_a_large_batch_of_similar_contexts_stays_whole() -> None:
    pages = np.arange(20, 200)
    assert planner().keeps_whole(pages)
    assert len(planner().plan(decodes(pages)).owners) == len(pages)


@pytest.mark.parametrize("others", [0, 10, 100])
def test_a_long_context_is_shared(others: int) -> None:
    pages = np.array([40] * others + [2000])
    assert not planner().keeps_whole(pages)
    assert len(planner().plan(decodes(pages)).owners) >= others + 20


def test_a_short_context_stays_whole() -> None:
    assert len(planner().plan(decodes([8])).owners) == 1


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), max_size=20))
def test_plans_that_are_kept_are_those_of_the_same_contexts(batches: list[list[int]]) -> None:
    kept = planner()
    for pages in batches:
        for one, other in zip(kept.plan(decodes(pages)), planner().plan(decodes(pages)), strict=True):
            assert np.array_equal(one, other)
