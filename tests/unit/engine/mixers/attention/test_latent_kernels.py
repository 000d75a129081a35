"""The kernels for latent attention, interpreted, against attention in plain torch."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.batch.batch import Batch
from engine.core.batch.decode_plan import DecodePlan, Decodes
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.decode_planner import DecodePlanner
from engine.mixers.attention.torch_backend import TorchAttention
from engine.modeling.layers.layer_attention import LayerAttention
from tests.unit.engine.mixers.attention.test_cpu_attention import LAYERS, Shape, pool_and_batch

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)

RANK, ROTATED, HEADS = 64, 32, 6
RULE = LayerAttention(scale=0.11, latent_rank=RANK)
SHAPE = Shape(page_size=8, kv_heads=1, group=HEADS, head_dim=(RANK + ROTATED) // 2, dtype=torch.float32)


def attended(pool: KVPool, batch: Batch, rows: torch.Tensor, multiprocessors: int) -> torch.Tensor:
    """Attention by the kernels, over rows that are stored."""
    from engine.kernels.attention.decode_attention import DecodeWorkspace
    from engine.mixers.attention.latent_kernels import _Chunks, _Decodes, latent_shape
    from engine.mixers.attention.paged_decodes import DecodeAttention

    shape, device = latent_shape(pool, RANK), pool.tensor.device
    planner = DecodePlanner(multiprocessors=multiprocessors, num_kv_heads=1, page_size=pool.page_size)
    workspace = DecodeWorkspace(planner.most_parts(8), 8, HEADS, 1, RANK, device)
    decodes = DecodeAttention(planner, _Decodes(shape, workspace, RULE), device)
    chunks = _Chunks(pool, shape, HEADS, RULE)
    n, [tables] = batch.num_chunks, batch.groups
    first = int(batch.query_indptr[n])
    out = torch.full((len(rows), HEADS, RANK), torch.nan)
    queries = rows[:, :HEADS]
    if n:
        chunks.prepare(batch.query_indptr[: n + 1], tables.context_lens[:n], [tables.block_tables.part(0, n)])
        chunks.run(0, queries[:first], pool.layer(0), out[:first], None, (1.0, 1.0))
    if n < batch.num_requests:
        rest = tables.block_tables.part(n, batch.num_requests)
        plan = planner.plan(Decodes(tables.context_lens[n:], rest))
        tensors = [torch.from_numpy(np.int32(values)) for values in plan]
        decodes._plans = [DecodePlan._make(tensors)]
        decodes.run(0, queries[first:], pool.layer(0), out[first:], None)
    return out


@pytest.mark.parametrize("multiprocessors", [1, 20])
@pytest.mark.parametrize(
    "requests",
    [
        [(0, 70), (0, 3), (40, 30)],
        [(300, 1), (5, 1), (0, 1), (127, 1)],
        [(0, 20), (130, 9), (61, 1), (500, 1)],
    ],
    ids=["chunks", "decodes", "both"],
)
def test_the_kernels_attend_as_plain_torch_does(
    requests: list[tuple[int, int]], multiprocessors: int
) -> None:
    from engine.kernels.attention.latent_store import store_latents

    pool, batch = pool_and_batch(SHAPE, requests, seed=0)
    theirs, their_batch = pool_and_batch(SHAPE, requests, seed=0)
    oracle = TorchAttention(theirs, HEADS, [RULE] * LAYERS)
    oracle.prepare(their_batch)
    rows = torch.randn(len(batch.input_ids), HEADS + 1, RANK + ROTATED)

    expected = oracle.forward(0, rows.clone(), None)
    store_latents(rows[:, -1], pool.layer(0), batch.groups[0].slot_mapping)

    slots = batch.groups[0].slot_mapping
    page, offset = slots // SHAPE.page_size, slots % SHAPE.page_size
    assert torch.equal(pool.layer(0)[page, :, 0, offset], theirs.layer(0)[page, :, 0, offset])
    result = attended(pool, batch, rows, multiprocessors)
    torch.testing.assert_close(result, expected, atol=2e-5, rtol=1e-4)


def test_a_decode_is_attended_to_alike_in_any_company() -> None:
    pool, batch = pool_and_batch(SHAPE, [(300, 1), (5, 1), (90, 1)], seed=0)
    rows = torch.randn(3, HEADS + 1, RANK + ROTATED)
    pool.tensor.nan_to_num_()
    together = attended(pool, batch, rows, multiprocessors=1)
    [tables] = batch.groups
    for r in range(3):
        context = tables.context_lens[r : r + 1]
        own = replace(tables, block_tables=tables.block_tables.part(r, r + 1), context_lens=context)
        alone = replace(batch, context_lens=context, groups=[own], query_indptr=np.array([0, 1]))
        result = attended(pool, alone, rows[r : r + 1], multiprocessors=1)
        torch.testing.assert_close(result[0], together[r], atol=2e-6, rtol=0)
