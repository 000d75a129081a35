"""Uniform attention: a row has the same bits alone, in a chunk, and after pages have left its window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.block_tables import BlockTables
from engine.kernels.cpu.library import cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.cpu_backend import CpuAttention
from engine.modeling.layers.layer_attention import LayerAttention
from tests.unit.engine.dense_attention import plain
from tests.unit.engine.mixers.attention.test_cpu_attention import LAYERS, Shape, pool_and_batch

pytestmark = pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="there is no compiler")


def part(batch: Batch, first: int, end: int, released: int, page_size: int) -> Batch:
    """Rows [first, end) of a batch of one request, without its first `released` pages."""
    (group,) = batch.groups
    pages = group.block_tables.pages.tolist()
    contexts = batch.context_lens - (int(batch.query_indptr[-1]) - end)
    kept = contexts - released * page_size
    tables = BlockTables.of([pages[released : -(-int(contexts[0]) // page_size)]])
    return replace(
        batch,
        rows=batch.rows[:, first:end].contiguous(),
        num_chunks=int(end - first > 1),
        query_indptr=np.array([0, end - first], dtype=np.int64),
        context_lens=contexts,
        groups=[GroupTables(group.slot_mapping[first:end].contiguous(), tables, kept)],
    )


def attended(
    pool: KVPool, shape: Shape, batch: Batch, rule: LayerAttention, qkv: torch.Tensor
) -> torch.Tensor:
    kernels = cpu_kernels(shape.dtype)
    assert kernels is not None
    layers = [*plain(LAYERS - 1, shape.head_dim), rule]
    attention = CpuAttention(pool, shape.heads, layers, kernels, uniform=True)
    attention.prepare(batch)
    return attention.forward(LAYERS - 1, qkv.clone(), None)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.builds(
        Shape,
        page_size=st.sampled_from([1, 3, 16, 64]),
        kv_heads=st.sampled_from([1, 2]),
        group=st.sampled_from([1, 3, 17]),
        head_dim=st.sampled_from([8, 64, 80]),
        dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    ),
    before=st.sampled_from([0, 5, 63, 64, 300, 4060, 5000]),
    new=st.sampled_from([2, 9, 70, 130]),
    window=st.sampled_from([None, 1, 5, 64, 100, 257, 4200]),
    soft_cap=st.sampled_from([None, 30.0]),
    sinks=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_row_has_the_same_bits_however_it_is_computed(
    shape: Shape, before: int, new: int, window: int | None, soft_cap: float | None, sinks: bool, seed: int
) -> None:
    pool, whole = pool_and_batch(shape, [(before, new)], seed)
    generator = torch.Generator().manual_seed(seed)
    sink = torch.randn(shape.heads, generator=generator) if sinks else None
    rule = LayerAttention(scale=shape.head_dim**-0.5, window=window, soft_cap=soft_cap, sinks=sink)
    size = (new, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    qkv = torch.randn(size, generator=generator).to(shape.dtype)
    expected = attended(pool, shape, whole, rule, qkv)

    for first, end in ((new - 1, new), (new // 2, new // 2 + 1), (0, 1), (1, new)):
        unseen = 0 if window is None else max(0, before + first + 1 - window) // shape.page_size
        for released in {0, unseen // 2, unseen}:
            few = part(whole, first, end, released, shape.page_size)
            found = attended(pool, shape, few, rule, qkv[first:end])
            assert torch.equal(found, expected[first:end]), (first, end, released)
