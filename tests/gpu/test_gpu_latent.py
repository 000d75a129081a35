"""Latent attention on the GPU, in the shape of DeepSeek's checkpoints, against attention written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.core.batch.batch import Batch
from engine.kv.cache.pool import KVPool, latents
from engine.mixers.attention import attention_for
from engine.modeling.layers.layer_attention import LayerAttention
from tests.unit.engine.mixers.attention.test_cpu_attention import LAYERS, Shape, pool_and_batch

RANK, ROTATED = 512, 64
RULE = LayerAttention(scale=0.07, latent_rank=RANK)
BATCHES = {
    "more rows than a plan has room for": [(10, 3500), (900, 4000), (0, 2), (33, 1)],
    "prompts from their start": [(0, 700), (0, 33), (0, 1500)],
    "the end of a long prompt": [(6000, 40)],
    "decodes": [(700, 1), (5, 1), (9000, 1), (127, 1), (128, 1)],
    "chunks and decodes": [(0, 500), (2500, 200), (50, 1), (3000, 1)],
}


def moved(pool: KVPool, batch: Batch) -> tuple[KVPool, Batch]:
    there = KVPool(
        num_pages=pool.num_pages,
        groups=pool.groups,
        num_kv_heads=1,
        head_dim=pool.head_dim,
        page_size=pool.page_size,
        dtype=pool.tensor.dtype,
        device="cuda",
    )
    [tables] = batch.groups
    # Pages are written as those of keys and values are: the tokens before the step anew, and NaN elsewhere.
    there.tensor.fill_(torch.nan)
    lists, lengths = tables.block_tables, np.diff(batch.query_indptr)
    for r, before in enumerate((tables.context_lens - lengths).tolist()):
        token = np.arange(before)
        page = torch.from_numpy(lists.pages[lists.indptr[r] + token // pool.page_size]).cuda()
        offset = torch.from_numpy(token % pool.page_size).cuda()
        for layer in range(LAYERS):
            rows = torch.randn(before, RANK + ROTATED, device="cuda").bfloat16()
            latents(there.layer(layer))[page, offset] = rows
    groups = [replace(tables, slot_mapping=tables.slot_mapping.cuda())]
    return there, replace(batch, groups=groups, rows=batch.rows.cuda())


def written_out(pool: KVPool, batch: Batch, queries: torch.Tensor) -> torch.Tensor:
    """In float64, by the rows that lie in layer 1."""
    [tables] = batch.groups
    lists = tables.block_tables
    out = torch.empty(*queries.shape[:2], RANK, dtype=torch.float64)
    for r, context in enumerate(batch.context_lens.tolist()):
        begin, end = int(batch.query_indptr[r]), int(batch.query_indptr[r + 1])
        table = torch.from_numpy(lists.pages[lists.indptr[r] : lists.indptr[r + 1]])
        rows = latents(pool.layer(1)).cpu()[table].flatten(0, 1)[:context].double()
        scores = torch.einsum("thd,cd->htc", queries[begin:end].double(), rows) * RULE.scale
        hidden = torch.arange(context) > (context - (end - begin) + torch.arange(end - begin))[:, None]
        shares = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[begin:end] = torch.einsum("htc,cd->thd", shares, rows[:, :RANK])
    return out


@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
def test_latents_are_attended_to_as_written_out(requests: list[tuple[int, int]], heads: int) -> None:
    shape = Shape(page_size=16, kv_heads=1, group=heads, head_dim=(RANK + ROTATED) // 2, dtype=torch.bfloat16)
    pool, batch = pool_and_batch(shape, requests, seed=0)
    there, its_batch = moved(pool, batch)
    attention = attention_for("flashinfer", there, heads, [RULE] * LAYERS, max_requests=8)
    rows = torch.randn(len(batch.input_ids), heads + 1, RANK + ROTATED).bfloat16()

    attention.prepare(its_batch)
    result = attention.forward(1, rows.cuda(), None)

    expected = written_out(there, batch, rows[:, :heads])
    error = (result.cpu().double() - expected).norm() / expected.norm()
    assert float(error) < 8e-3
