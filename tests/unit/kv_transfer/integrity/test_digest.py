"""Digests see every valid byte, and none of the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import KVGroup, KVHeads, full_group
from kv_transfer import KVLayout, PoolMemory, request_digest
from kv_transfer.integrity.digest import HostDigester, PageDigester
from kv_transfer.integrity.sum64 import HostSum64
from kv_transfer.state_layout import StateLayout
from tests.kv_support import LAYOUT, Pool

ROWS, PAGE_SIZE, TOKEN_BYTES = LAYOUT.rows_per_page, LAYOUT.page_size, LAYOUT.token_bytes


def digester_of(pool: Pool, kind: type[HostDigester | HostSum64] = HostDigester) -> PageDigester:
    return kind(pool.memory, pool.layout)


def filled() -> Pool:
    pool = Pool(4)
    pool.fill(range(4))
    return pool


@pytest.mark.parametrize("kind", [HostDigester, HostSum64])
@given(
    tail_tokens=st.integers(1, PAGE_SIZE),
    row=st.integers(0, ROWS - 1),
    token=st.integers(0, PAGE_SIZE - 1),
    byte=st.integers(0, TOKEN_BYTES - 1),
    bit=st.integers(0, 7),
)
def test_a_flipped_bit_changes_the_digest_exactly_if_its_token_is_valid(
    kind: type[HostDigester | HostSum64], tail_tokens: int, row: int, token: int, byte: int, bit: int
) -> None:
    pool = filled()
    digester = digester_of(pool, kind)
    before = digester.digest([1, 2], tail_tokens)
    pool.bytes[2].reshape(ROWS, PAGE_SIZE, TOKEN_BYTES)[row, token, byte] ^= 1 << bit
    after = digester.digest([1, 2], tail_tokens)
    assert after[0] == before[0]
    assert (after[1] != before[1]) == (token < tail_tokens)


@pytest.mark.parametrize("kind", [HostDigester, HostSum64])
@pytest.mark.parametrize(("group", "rows", "dim"), [(0, 8, 4), (1, 4, 8)])
def test_tokens_of_a_tail_are_those_of_its_groups_heads(
    kind: type[HostDigester | HostSum64], group: int, rows: int, dim: int
) -> None:
    """Pages of both groups have as many bytes, and other tokens where these are cut."""
    groups = (KVGroup((0, 1), 3, heads=KVHeads(2, 4)), KVGroup((2,), heads=KVHeads(2, 8)))
    layout = replace(LAYOUT, groups=groups, num_kv_heads=2, head_dim=4)
    pool = Pool(1, layout)
    pool.fill([0])
    digester = digester_of(pool, kind)
    tokens = pool.bytes[0].reshape(rows, layout.page_size, dim * layout.token_bytes // 4)
    for token in range(layout.page_size):
        before = digester.digest([0], 3, group)
        tokens[rows - 1, token] ^= 1
        assert (digester.digest([0], 3, group) != before) == (token < 3)


def test_equal_pages_have_equal_digests_wherever_they_are() -> None:
    pool = filled()
    pool.bytes[3] = pool.bytes[0]
    assert digester_of(pool).digest([0], PAGE_SIZE) == digester_of(pool).digest([3], PAGE_SIZE)


def test_a_partly_filled_page_is_not_confused_with_a_shorter_one() -> None:
    pool = Pool(1)
    digester = digester_of(pool)
    assert len({digester.digest([0], tokens)[0] for tokens in range(1, PAGE_SIZE + 1)}) == PAGE_SIZE


def test_no_pages_have_no_digests() -> None:
    assert digester_of(filled()).digest([], PAGE_SIZE) == []


def test_memory_on_a_gpu_needs_a_digester_of_its_own() -> None:
    memory = PoolMemory(0, LAYOUT.page_bytes, 4, device="cuda:1")
    with pytest.raises(TypeError, match="cuda:1"):
        HostDigester(memory, LAYOUT)


def test_a_pool_of_another_page_size_is_refused() -> None:
    other = KVLayout(
        model="tiny", dtype="float32", groups=full_group(2), num_kv_heads=2, head_dim=4, page_size=8
    )
    with pytest.raises(ValueError, match="bytes per page"):
        HostDigester(Pool(4).memory, other)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20), st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_requests_with_different_tokens_have_different_digests(left: list[int], right: list[int]) -> None:
    assert (request_digest(left, ()) == request_digest(right, ())) == (left == right)


def test_sampling_parameters_are_part_of_a_request() -> None:
    tokens = np.arange(10).tolist()
    digests = [
        request_digest(tokens, []),
        request_digest(tokens, [b"a"]),
        request_digest(tokens, [b"b"]),
        request_digest(tokens, [b"a", b"b"]),
        request_digest(tokens, [b"ab"]),
    ]
    assert len(set(digests)) == len(digests)


STATEFUL = replace(LAYOUT, state=StateLayout(2, ((1, (300,)), (2, (24, 20)))))


@pytest.mark.parametrize("kind", [HostDigester, HostSum64])
def test_a_state_has_a_digest_for_each_head(kind: type[HostDigester | HostSum64]) -> None:
    """A flipped bit changes that of its head, and behind the state none."""
    pool = Pool(5, STATEFUL)
    pool.fill(range(5))
    digester = digester_of(pool, kind)
    before = digester.digest_state(2)
    assert len(set(before)) == 2
    state = pool.bytes[2:4].reshape(-1)
    assert STATEFUL.state is not None
    starts = [*STATEFUL.state.starts(2), STATEFUL.state_bytes]
    for byte in range(STATEFUL.state_bytes + 2):
        state[byte] ^= 16
        row = sum(byte >= start for start in starts) - 1
        changed = [now != then for now, then in zip(digester.digest_state(2), before, strict=True)]
        if byte >= STATEFUL.state_bytes:
            assert changed == [False, False]
        else:
            first = byte - starts[row] < STATEFUL.state.rows[row]
            assert changed == [first, not first]
        state[byte] ^= 16
