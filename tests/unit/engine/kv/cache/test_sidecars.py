"""Rows of pages: known as a whole or not at all, and gone when the page is taken again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.sidecars import SidecarKind, pooled_sums
from engine.kv.cache.sidecars import Sidecars

PAGE = 4
LOGPROB = SidecarKind("logprob", 0, np.dtype("<f4"))
EXPERTS = SidecarKind("experts", 0, np.dtype((np.uint8, (2, 3))))


def rows(kind: SidecarKind, *values: int) -> np.ndarray:
    filled = np.zeros(len(values), kind.row)
    for row, value in enumerate(values):
        filled[row] = value
    return filled


@given(st.lists(st.tuples(st.integers(0, PAGE - 1), st.integers(1, PAGE)), max_size=6))
def test_a_page_is_complete_once_all_its_rows_were_written_in_order(parts: list[tuple[int, int]]) -> None:
    sidecars, known = Sidecars(3, PAGE, (LOGPROB, EXPERTS)), 0
    for first, count in parts:
        end = min(first + count, PAGE)
        for kind in (LOGPROB, EXPERTS):
            sidecars.write(kind, 1, first, rows(kind, *range(first, end)))
        known = max(known, end) if first <= known else known
        assert sidecars.num_complete(EXPERTS, [1]) == (known == PAGE)
        assert bool(sidecars.read(1)) == bool(known)
    if known == PAGE:
        assert (sidecars.rows(EXPERTS, [1]) == rows(EXPERTS, *range(PAGE))).all()


def test_a_record_gives_another_page_the_same_rows() -> None:
    here, there = Sidecars(3, PAGE, (LOGPROB, EXPERTS)), Sidecars(3, PAGE, (LOGPROB, EXPERTS))
    here.write(EXPERTS, 0, 0, rows(EXPERTS, 5, 6, 7, 8))
    there.put(2, here.read(0))
    assert (there.rows(EXPERTS, [2]) == rows(EXPERTS, 5, 6, 7, 8)).all()
    assert there.num_complete(LOGPROB, [2]) == 0
    assert there.read(2) == here.read(0)
    there.clear([2])
    assert there.read(2) == b""


@given(st.lists(st.tuples(st.integers(0, PAGE - 1), st.integers(1, PAGE)), max_size=6))
def test_a_sum_over_a_page_has_each_token_once_whatever_comes_twice(parts: list[tuple[int, int]]) -> None:
    sums = pooled_sums("mean", 2)
    sidecars, other, known = Sidecars(3, PAGE, (sums,)), Sidecars(3, PAGE, (sums,)), 0
    for first, count in parts:
        tokens = min(count, PAGE - first)
        part = float(sum(range(first, first + tokens)))
        sidecars.add(sums, 1, first, tokens, np.array([part, -part], np.float32))
        known += tokens if first == known else 0
        assert sidecars.num_complete(sums, [1]) == (known == PAGE)
    if known == PAGE:
        other.put(2, sidecars.read(1))
        other.copy(2, 0)
        total = float(sum(range(PAGE)))
        assert other.rows(sums, [2, 0]).tolist() == [[total, -total]] * 2
        other.clear([0])
        other.add(sums, 0, 0, 1, np.array([3, 4], np.float32))
        assert other.num_complete(sums, [0]) == 0


@pytest.mark.parametrize("record", [b"", b"\x01", b"\x05" + bytes(47), bytes(1000)])
def test_a_record_that_does_not_fit_is_ignored(record: bytes) -> None:
    sidecars = Sidecars(3, PAGE, (LOGPROB, EXPERTS))
    assert sidecars.record_bytes == 48
    sidecars.put(0, record)
    assert sidecars.read(0) == b""


def test_a_copy_never_takes_rows_away() -> None:
    sidecars = Sidecars(3, PAGE, (LOGPROB,))
    sidecars.write(LOGPROB, 0, 0, rows(LOGPROB, 1, 2, 3, 4))
    sidecars.copy(1, 0)
    assert sidecars.num_complete(LOGPROB, [0, 1]) == 1
    sidecars.copy(0, 1)
    assert sidecars.num_complete(LOGPROB, [0, 1]) == 2


def test_states_of_recurrent_models_have_no_rows() -> None:
    assert Sidecars(3, PAGE, (LOGPROB,)).read(7) == b""
