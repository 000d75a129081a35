"""Items of uniform attention: together they compute each split of each token once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.mixers.attention.uniform.planner import Contexts, Queries, num_slots, plan_items

SPLIT = 512
LENGTHS = st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 200)), max_size=8)


@given(
    LENGTHS, st.sampled_from([1, 16, 32]), st.sampled_from([None, 100, 700]), st.sampled_from([None, 1, 20])
)
def test_every_split_that_a_token_sees_is_computed_once(
    requests: list[tuple[int, int]], tile: int, window: int | None, most: int | None
) -> None:
    positions, lengths = (
        (np.array(column, dtype=np.int64) for column in zip(*requests, strict=True))
        if (requests)
        else (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    )
    rows = np.cumsum(lengths) - lengths
    queries = Queries(rows, lengths, positions)
    contexts = Contexts(10 * np.arange(len(rows)), 16 * np.arange(len(rows)))
    items = plan_items(queries, contexts, tile_tokens=tile, split=SPLIT, window=window, most_parts=most)
    places = [
        (row + i, position + i) for row, (position, n) in zip(rows, requests, strict=True) for i in range(n)
    ]
    seen, slots = Counter[tuple[int, int, int]](), Counter[int]()
    for row, tokens, position, page, offset, begin, end, slot in items.tolist():
        assert tokens <= tile
        assert (page, offset) == (10 * (page // 10), 16 * (page // 10))
        for split in range(begin, end):
            slots.update(range(slot + (split - begin) * tokens, slot + (split - begin + 1) * tokens))
            seen.update((row + i, position + i, split) for i in range(tokens))
    for row, position in places:
        first = 0 if window is None else max(position + 1 - window, 0) // SPLIT
        for split in range(first, position // SPLIT + 1):
            assert seen[row, position, split] == 1
    assert set(seen.values()) <= {1}
    assert set(slots.values()) <= {1}
    assert max(slots, default=-1) < max(1, num_slots(queries, split=SPLIT, window=window))
    tiles = int((-(-lengths // tile)).sum())
    assert len(items) <= tiles + (most or 0)
    if most is None:
        assert len(items) == tiles


def test_the_longest_items_come_first() -> None:
    queries = Queries(np.arange(3), np.ones(3, dtype=np.int64), np.array([10, 3000, 600]))
    contexts = Contexts(np.arange(3), np.zeros(3, dtype=np.int64))
    whole = plan_items(queries, contexts, tile_tokens=1, split=SPLIT, window=None, most_parts=None)
    assert whole[:, 2].tolist() == [3000, 600, 10]
    parted = plan_items(queries, contexts, tile_tokens=1, split=SPLIT, window=None, most_parts=3)
    assert parted[:, 2].tolist() == [3000, 3000, 600, 10]
