"""What a page is, and when two workers agree on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.kv_groups import full_group, group_layers
from kv_transfer import KVLayout
from kv_transfer.state_layout import StateLayout

LLAMA_8B = KVLayout(
    model="llama", dtype="bfloat16", groups=full_group(32), num_kv_heads=8, head_dim=128, page_size=16
)


def test_a_page_of_an_8b_model_is_two_megabytes() -> None:
    assert LLAMA_8B.page_bytes == 2 * 2**20


@pytest.mark.parametrize(
    ("num_tokens", "num_pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (4000, 250)]
)
def test_a_partly_filled_last_page_is_counted(num_tokens: int, num_pages: int) -> None:
    assert LLAMA_8B.num_blocks(num_tokens) == num_pages


@pytest.mark.parametrize(
    "change",
    [
        {"model": "llama-2"},
        {"dtype": "float16"},
        {"groups": full_group(31)},
        {"groups": group_layers([None] * 31 + [4096], 8192)},
        {"groups": group_layers([4096] * 32, 8192)},
        {"groups": group_layers([1024] * 32, 8192)},
        {"num_kv_heads": 4},
        {"head_dim": 64},
        {"page_size": 32},
        {"tp_size": 2},
        {"digest": "crc32"},
        {"state": StateLayout(4, ((1, (8, 4)),))},
    ],
)
def test_the_hash_changes_with_every_field_that_changes_the_meaning_of_pages(
    change: dict[str, object],
) -> None:
    assert replace(LLAMA_8B, **change).hash != LLAMA_8B.hash  # type: ignore[arg-type]


def test_ranks_of_one_model_share_a_hash() -> None:
    sharded = replace(LLAMA_8B, tp_size=4)
    assert replace(sharded, tp_rank=3).hash == sharded.hash


def test_more_ranks_than_heads_share_heads() -> None:
    shards = [replace(LLAMA_8B, num_kv_heads=2, tp_size=4, tp_rank=rank) for rank in range(4)]
    assert [shard.heads_per_shard for shard in shards] == [1, 1, 1, 1]
    assert [shard.first_head for shard in shards] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int4"}, "int4"),
        ({"page_size": 0}, "page_size"),
        ({"tp_size": 3}, "8 kv heads cannot be sharded over 3 ranks"),
        ({"tp_size": 2, "tp_rank": 2}, "tp_rank 2"),
    ],
)
def test_an_impossible_layout_is_refused_with_the_reason(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(LLAMA_8B, **change)  # type: ignore[arg-type]


def test_ranks_share_the_heads_of_a_state_equally_also_where_they_share_kv_heads() -> None:
    layout = replace(LLAMA_8B, num_kv_heads=2, state=StateLayout(16, ((1, (2**20, 2**10)),)))
    shards = [replace(layout, tp_size=4, tp_rank=rank) for rank in range(4)]
    assert [list(shard.state_heads) for shard in shards] == [list(range(4 * r, 4 * r + 4)) for r in range(4)]
    assert sum(shard.state_bytes for shard in shards) == layout.state_bytes
    assert shards[0].page_bytes * 2 == layout.page_bytes
    assert shards[0].state_pages == 17
    assert layout.state_pages == 33


def test_ranks_that_cannot_share_the_heads_of_a_state_are_refused() -> None:
    with pytest.raises(ValueError, match="a state of 6 heads cannot be shared by 4 ranks"):
        replace(LLAMA_8B, state=StateLayout(6, ((1, (4,)),)), tp_size=4)
