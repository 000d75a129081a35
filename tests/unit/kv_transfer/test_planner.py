"""The arithmetic of transfers, against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer import KVLayout
from kv_transfer.planner import blocks_due, coalesce, plan_shard_copies, plan_state_copies
from kv_transfer.state_layout import StateLayout
from tests.kv_support import LAYOUT

PAGES = st.lists(st.integers(0, 63), unique=True, max_size=30)


@given(
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    cached_pages=st.integers(0, 3),
)
def test_every_page_is_sent_exactly_once_and_never_before_its_last_token(
    chunks: list[int], cached_pages: int
) -> None:
    total = sum(chunks)
    done = min(cached_pages, LAYOUT.num_blocks(total) - 1)
    sent, num_tokens = list(range(done)), 0
    for index, chunk in enumerate(chunks):
        num_tokens += chunk
        complete = index == len(chunks) - 1
        due = blocks_due(LAYOUT, done=done, num_tokens=num_tokens, complete=complete)
        assert complete or all((page + 1) * LAYOUT.page_size <= num_tokens for page in due)
        sent += due
        done = due.stop
    assert sent == list(range(LAYOUT.num_blocks(total)))


@given(PAGES, st.randoms())
def test_coalesced_copies_move_the_same_bytes_as_page_by_page(local: list[int], random: object) -> None:
    remote = [(page * 7 + 3) % 64 for page in local]
    source = np.arange(64, dtype=np.uint8).repeat(8)
    target = np.full(64 * 8, 255, dtype=np.uint8)
    expected = target.copy()
    for mine, theirs in zip(local, remote, strict=True):
        expected[theirs * 8 : theirs * 8 + 8] = source[mine * 8 : mine * 8 + 8]
    for copy in coalesce(local, remote, 8):
        target[copy.remote : copy.remote + copy.length] = source[copy.local : copy.local + copy.length]
    np.testing.assert_array_equal(target, expected)


def test_pages_adjacent_on_both_sides_are_one_copy() -> None:
    (copy,) = coalesce([4, 5, 6], [10, 11, 12], 100)
    assert (copy.local, copy.remote, copy.length) == (400, 1000, 300)


def test_local_and_remote_pages_must_be_equally_many() -> None:
    with pytest.raises(ValueError, match="3 local pages cannot be copied to 2"):
        coalesce([1, 2, 3], [1, 2], 8)


def shard(layout: KVLayout, size: int, rank: int) -> KVLayout:
    return replace(layout, tp_size=size, tp_rank=rank)


def whole_page(layout: KVLayout, page: int) -> np.ndarray:
    """A page of the unsharded model, `[block, head, byte]`; every byte differs from its neighbours."""
    shape = (layout.page_layers * 2, layout.num_kv_heads, layout.head_bytes)
    generator = np.random.default_rng(page)
    return generator.integers(0, 256, shape, dtype=np.uint8)


def shard_page(layout: KVLayout, page: int) -> np.ndarray:
    heads = slice(layout.first_head, layout.first_head + layout.heads_per_shard)
    return whole_page(replace(layout, tp_size=1, tp_rank=0), page)[:, heads].reshape(-1)


@given(
    source_size=st.sampled_from([1, 2, 4, 8]),
    target_size=st.sampled_from([1, 2, 4, 8]),
    pages=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4, unique_by=(lambda p: p[1],)),
)
def test_shards_of_any_parallelism_reassemble_each_others_pages(
    source_size: int, target_size: int, pages: list[tuple[int, int]]
) -> None:
    layout = replace(LAYOUT, num_kv_heads=4)
    local, remote = [p[0] for p in pages], [p[1] for p in pages]
    for target_rank in range(target_size):
        target = shard(layout, target_size, target_rank)
        pool = np.zeros(6 * target.page_bytes, dtype=np.uint8)
        written = np.zeros_like(pool)
        for source_rank in range(source_size):
            source = shard(layout, source_size, source_rank)
            memory = np.concatenate([shard_page(source, page) for page in range(6)])
            for copy in plan_shard_copies(source, target, local, remote):
                pool[copy.remote : copy.remote + copy.length] = memory[copy.local : copy.local + copy.length]
                written[copy.remote : copy.remote + copy.length] += 1
        expected = np.zeros_like(pool).reshape(6, -1)
        for mine, theirs in pages:
            expected[theirs] = shard_page(target, mine)
        np.testing.assert_array_equal(pool.reshape(6, -1), expected)
        touched = np.zeros((6, target.page_bytes), dtype=np.uint8)
        touched[remote] = 1
        np.testing.assert_array_equal(written.reshape(6, -1), touched)


def test_shards_of_different_models_are_never_mixed() -> None:
    with pytest.raises(ValueError, match="more than their tensor parallelism"):
        plan_shard_copies(LAYOUT, replace(LAYOUT, page_size=8), [0], [0])


def shard_state(layout: KVLayout) -> np.ndarray:
    """A rank's part of one state; every byte of the whole differs from those around it."""
    assert layout.state is not None
    generator = np.random.default_rng(7)
    whole = [
        generator.integers(1, 256, (layout.state.heads, row), dtype=np.uint8) for row in layout.state.rows
    ]
    return np.concatenate([row[layout.state_heads].reshape(-1) for row in whole])


@given(
    source_size=st.sampled_from([1, 2, 4, 8]),
    target_size=st.sampled_from([1, 2, 4, 8]),
    rows=st.lists(st.integers(1, 40), min_size=1, max_size=7),
    heads=st.sampled_from([8, 16]),
    at=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_ranks_of_any_number_reassemble_a_state(
    source_size: int, target_size: int, rows: list[int], heads: int, at: tuple[int, int]
) -> None:
    """There may be more ranks than KV heads: then pages are copies, and states are not."""
    layout = replace(LAYOUT, num_kv_heads=2, state=StateLayout(heads, ((2, tuple(rows)), (1, (9,)))))
    local, remote = at
    for target_rank in range(target_size):
        target = shard(layout, target_size, target_rank)
        begin = remote * target.page_bytes
        pool = np.zeros(begin + target.state_bytes + 9, dtype=np.uint8)
        written = np.zeros_like(pool)
        for source_rank in range(source_size):
            source = shard(layout, source_size, source_rank)
            memory = np.concatenate(
                [np.zeros(local * source.page_bytes, dtype=np.uint8), shard_state(source)]
            )
            for copy in plan_state_copies(source, target, local, remote):
                pool[copy.remote : copy.remote + copy.length] = memory[copy.local : copy.local + copy.length]
                written[copy.remote : copy.remote + copy.length] += 1
        np.testing.assert_array_equal(pool[begin:-9], shard_state(target))
        assert written[begin:-9].min() == written.max() == 1
        assert written.sum() == target.state_bytes


def test_ranks_with_the_same_heads_copy_a_state_at_once() -> None:
    layout = replace(LAYOUT, state=StateLayout(4, ((1, (3, 5)),)), tp_size=2, tp_rank=1)
    (copy,) = plan_state_copies(layout, layout, 1, 2)
    assert (copy.local, copy.remote, copy.length) == (layout.page_bytes, 2 * layout.page_bytes, 16)


def test_states_of_different_shapes_are_never_mixed() -> None:
    layout = replace(LAYOUT, state=StateLayout(4, ((1, (3, 5)),)))
    with pytest.raises(ValueError, match="not of the same state"):
        plan_state_copies(layout, replace(layout, state=StateLayout(4, ((1, (5, 3)),))), 0, 0)
