"""What a rank has of a recurrent state: `RecurrentSpec.state_rows` describe the engine's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from common.kv_groups import full_group
from engine.kv.cache.pool import KVPool
from engine.model_config.parts.recurrent_spec import RecurrentSpec
from kv_transfer import KVLayout
from kv_transfer.planner import plan_state_copies
from kv_transfer.state_layout import StateLayout

DELTA = RecurrentSpec(layers=frozenset({0, 1}), key_heads=4, value_heads=8, key_dim=4, value_dim=6, kernel=4)
DTYPES = [torch.float32, torch.bfloat16]


def pool_of(ranks: int, dtype: torch.dtype) -> KVPool:
    part = replace(DELTA, key_heads=4 // ranks, value_heads=8 // ranks)
    return KVPool(
        num_pages=3,
        groups=full_group(1),
        num_kv_heads=max(1, 2 // ranks),
        head_dim=4,
        page_size=8,
        dtype=dtype,
        device="cpu",
        recurrent=part,
        num_slots=2,
    )


def layout_of(ranks: int, rank: int, dtype: torch.dtype) -> KVLayout:
    state = StateLayout(DELTA.key_heads, DELTA.state_rows(dtype.itemsize))
    name = str(dtype).removeprefix("torch.")
    return KVLayout("m", name, full_group(1), 2, 4, 8, tp_size=ranks, tp_rank=rank, state=state)


def fill(pool: KVPool, slot: int, rank: int, ranks: int) -> None:
    """Values that say which layer, kind, head and place they are of, in the whole model."""
    assert pool.states is not None
    part = pool.states.spec
    for layer in range(2):
        matrices, window = (whole[slot] for whole in pool.states.layer(layer))
        value = torch.arange(part.value_heads) + rank * part.value_heads
        matrices.copy_((value * 100 + layer)[:, None, None].expand_as(matrices))
        key = torch.arange(part.key_heads).repeat_interleave(part.key_dim) + rank * part.key_heads
        of_value = value.repeat_interleave(part.value_dim)
        window.copy_(torch.cat((key + 16, key + 32, of_value + 48))[:, None].expand_as(window) + 64 * layer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 2), (2, 1), (1, 4), (4, 2), (2, 4)])
def test_every_rank_gets_the_heads_that_it_computes(source: int, target: int, dtype: torch.dtype) -> None:
    senders = [pool_of(source, dtype) for _ in range(source)]
    for rank, pool in enumerate(senders):
        fill(pool, 1, rank, source)
    for rank in range(target):
        here, expected = pool_of(target, dtype), pool_of(target, dtype)
        fill(expected, 0, rank, target)
        layout = layout_of(target, rank, dtype)
        assert len(here.blocks_of(0)) == layout.state_pages
        for number, pool in enumerate(senders):
            theirs = layout_of(source, number, dtype)
            assert pool.page_bytes == theirs.page_bytes
            ours, sent = here.memory.view(-1), pool.memory.view(-1)
            for copy in plan_state_copies(theirs, layout, pool.blocks_of(1)[0], here.blocks_of(0)[0]):
                ours[copy.remote : copy.remote + copy.length] = sent[copy.local : copy.local + copy.length]
        assert torch.equal(here.memory, expected.memory)
