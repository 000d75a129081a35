"""Pages of several requests in one array."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch.block_tables import BlockTables

FILL = -1
lists_of_pages = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=6)


def unpacked(lists: BlockTables) -> list[list[int]]:
    bounds = lists.indptr.tolist()
    assert lists.counts.tolist() == [end - begin for begin, end in pairwise(bounds)]
    return [lists.pages[begin:end].tolist() for begin, end in pairwise(bounds)]


@given(lists_of_pages, st.data())
def test_a_part_stands_for_itself(lists: list[list[int]], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(lists) - 1))
    end = data.draw(st.integers(begin + 1, len(lists)))
    assert unpacked(BlockTables.of(lists).part(begin, end)) == lists[begin:end]


@given(lists_of_pages, st.integers(0, 3))
def test_padding_adds_requests_of_one_page(lists: list[list[int]], missing: int) -> None:
    assert unpacked(BlockTables.of(lists).padded(missing, 7)) == lists + [[7]] * missing


@given(lists_of_pages)
def test_a_table_has_a_row_a_request(lists: list[list[int]]) -> None:
    widest = max(map(len, lists))
    assert BlockTables.of(lists).table(FILL).tolist() == [row + [FILL] * (widest - len(row)) for row in lists]
