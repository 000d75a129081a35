"""Attention on the GPU, in every rule by which a layer attends, against attention written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from common.kv_groups import KVGroup
from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.block_tables import BlockTables
from engine.kv.cache.pool import KVPool
from engine.kv.cache.stored import Fp8KV
from engine.mixers.attention import attention_for
from engine.modeling.layers.layer_attention import LayerAttention
from tests.unit.engine.mixers.attention.test_cpu_attention import LAYERS, Shape, pool_and_batch, written_out

FP8_MAX = torch.finfo(torch.float8_e4m3fn).max
SINKS = torch.linspace(-2, 6, 16)
RULES = {
    "plain": LayerAttention(scale=0.125),
    "window": LayerAttention(scale=0.125, window=128),
    "wide window, sinks": LayerAttention(scale=0.1, window=1000, sinks=SINKS),
    "soft cap": LayerAttention(scale=0.2, soft_cap=3.0),
    "window, soft cap": LayerAttention(scale=0.2, window=512, soft_cap=3.0),
    "sinks": LayerAttention(scale=0.1, sinks=SINKS),
}
BATCHES = {
    "prompts from their start": [(0, 700), (0, 33), (0, 1500)],
    "the end of a long prompt": [(6000, 40)],
    "chunks behind others": [(900, 300), (127, 129), (4000, 2000)],
    "decodes": [(700, 1), (5, 1), (9000, 1), (127, 1), (128, 1)],
    "one decode": [(9000, 1)],
    "one decode of one token": [(0, 1)],
    "one decode that begins a page": [(160, 1)],
    "chunks and decodes": [(0, 500), (2500, 200), (50, 1), (3000, 1)],
}


def moved(pool: KVPool, batch: Batch, window: int | None, fp8: Fp8KV | None = None) -> tuple[KVPool, Batch]:
    """On the device, the second layer in a group of its own, whose tables begin where `window` does."""
    device = torch.device("cuda")
    count, page_size = pool.num_pages, pool.page_size
    there = KVPool(
        num_pages=LAYERS * count,
        groups=[KVGroup((0,)), KVGroup((1,), window)],
        num_kv_heads=pool.num_kv_heads,
        head_dim=pool.head_dim,
        page_size=page_size,
        dtype=pool.tensor.dtype,
        device=device,
        fp8=fp8,
    )
    for layer in range(LAYERS):
        own = pool.tensor[:count, layer].nan_to_num()
        if fp8:  # older versions of torch convert what is larger to NaN
            own = (own * 100).clamp(-FP8_MAX, FP8_MAX)
        there.tensor[layer * count : (layer + 1) * count, 0].copy_(own)
    [tables] = batch.groups
    first = np.zeros_like(batch.context_lens)
    if window is not None:
        starts = batch.context_lens - np.diff(batch.query_indptr)
        first = np.maximum(starts + 1 - window, 0) // page_size
    lists = np.split(tables.block_tables.pages + count, tables.block_tables.indptr[1:-1])
    seen = [pages[skipped:].tolist() for pages, skipped in zip(lists, first, strict=True)]
    groups = [
        replace(tables, slot_mapping=tables.slot_mapping.to(device)),
        GroupTables(
            tables.slot_mapping.to(device) + count * page_size,
            BlockTables.of(seen),
            batch.context_lens - first * page_size,
        ),
    ]
    return there, replace(batch, groups=groups, rows=batch.rows.to(device))


def stored(there: KVPool, pool: KVPool, layer: int) -> torch.Tensor:
    """A layer's pages as they are numbered in `pool`."""
    return there.tensor[layer * pool.num_pages : (layer + 1) * pool.num_pages, 0].cpu()


@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize(
    ("head_dim", "name"),
    [
        *((64, name) for name in ("plain", "window", "wide window, sinks", "sinks")),
        *((256, name) for name in ("window", "soft cap", "window, soft cap")),
    ],
)
def test_layers_with_windows_soft_caps_and_sinks_attend_as_written_out(
    name: str, requests: list[tuple[int, int]], head_dim: int
) -> None:
    """The first layer is plain: layers of different rules share buffers."""
    shape = Shape(page_size=16, kv_heads=4, group=4, head_dim=head_dim, dtype=torch.bfloat16)
    pool, batch = pool_and_batch(shape, requests, seed=0)
    rules = [RULES["plain"], RULES[name]]
    on_device = [rule if rule.sinks is None else replace(rule, sinks=rule.sinks.to("cuda")) for rule in rules]
    there, its_batch = moved(pool, batch, RULES[name].window)
    attention = attention_for("flashinfer", there, shape.heads, on_device, max_requests=8)
    attention.prepare(its_batch)
    for layer in range(LAYERS):
        size = (len(batch.input_ids), shape.heads + 2 * shape.kv_heads, head_dim)
        qkv = torch.randn(size, generator=torch.Generator().manual_seed(layer)).bfloat16()

        result = attention.forward(layer, qkv.cuda(), None)

        pool.tensor[: pool.num_pages, layer] = stored(there, pool, layer)
        expected = written_out(pool, batch, layer, qkv[:, : shape.heads], rules[layer], "cuda")
        torch.testing.assert_close(result.double(), expected, atol=1e-2, rtol=3e-2)


@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", ["plain", "window, soft cap", "sinks"])
def test_keys_and_values_in_8_bits_are_attended_to_as_they_are_stored(
    name: str, requests: list[tuple[int, int]]
) -> None:
    """Whichever kernel reads them: over pages, over a copy, or of decodes."""
    shape = Shape(page_size=16, kv_heads=4, group=4, head_dim=128, dtype=torch.bfloat16)
    pool, batch = pool_and_batch(shape, requests, seed=0)
    fp8 = Fp8KV(((0.011, 0.02), (0.0078125, 0.013)))
    rule = RULES[name] if RULES[name].sinks is None else replace(RULES[name], sinks=SINKS.to("cuda"))
    there, its_batch = moved(pool, batch, rule.window, fp8)
    attention = attention_for("flashinfer", there, shape.heads, [RULES["plain"], rule], max_requests=8)
    attention.prepare(its_batch)
    page, offset = batch.groups[0].slot_mapping // 16, batch.groups[0].slot_mapping % 16
    for layer in range(LAYERS):
        size = (len(batch.input_ids), shape.heads + 2 * shape.kv_heads, 128)
        qkv = torch.randn(size, generator=torch.Generator().manual_seed(layer)).bfloat16()

        result = attention.forward(layer, qkv.cuda(), None)

        own_pages = stored(there, pool, layer)
        for kind, (own, scale) in enumerate(zip(qkv[:, -8:].split(4, 1), fp8.scales[layer], strict=True)):
            written = own_pages[:, kind].transpose(1, 2)[page, offset].float()
            largest = FP8_MAX * scale
            torch.testing.assert_close(
                written * scale, own.float().clamp(-largest, largest), atol=scale, rtol=0.07
            )
            pool.tensor[: pool.num_pages, layer, kind] = (own_pages[:, kind].float() * scale).bfloat16()
        chosen = RULES["plain"] if layer == 0 else RULES[name]
        expected = written_out(pool, batch, layer, qkv[:, : shape.heads], chosen, "cuda")
        torch.testing.assert_close(result.double(), expected, atol=2e-2, rtol=3e-2)


@pytest.mark.parametrize("position", [0, 15, 16, 700, 3000])
@pytest.mark.parametrize(
    ("head_dim", "fp8"),
    [(64, None), (128, None), (256, None), (128, Fp8KV(((0.011, 0.02), (0.0078125, 0.013))))],
    ids=["64", "128", "256", "128 in fp8"],
)
def test_a_lone_decode_rotates_and_stores_its_token_as_separate_kernels_do(
    head_dim: int, position: int, fp8: Fp8KV | None
) -> None:
    from engine.modeling.layers.ops.flashinfer_ops import Positions

    shape = Shape(page_size=16, kv_heads=4, group=4, head_dim=head_dim, dtype=torch.bfloat16)
    pool, batch = pool_and_batch(shape, [(position, 1)], seed=0)
    there, its_batch = moved(pool, batch, None, fp8)
    rules = [RULES["plain"]] * LAYERS
    attention = attention_for("flashinfer", there, shape.heads, rules, max_requests=8)
    attention.prepare(its_batch)
    angles = torch.rand(4096, head_dim // 2, device="cuda") * 6
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    rotation = Positions(table, torch.tensor([position], device="cuda"))
    size = (1, shape.heads + 2 * shape.kv_heads, head_dim)
    for layer in range(LAYERS):
        qkv = torch.randn(size, device="cuda", dtype=torch.bfloat16)
        before = there.tensor.clone()

        result = attention.forward(layer, qkv.clone(), rotation)
        pages = there.tensor.clone()

        there.tensor.copy_(before)
        queries, expected = qkv[:, : shape.heads], torch.empty_like(result)
        attention.store(layer, qkv, rotation, its_batch.groups[layer].slot_mapping, queries)
        attention.attend(layer, queries, expected)
        torch.testing.assert_close(pages.float(), there.tensor.float(), atol=2e-2, rtol=0.13 if fp8 else 8e-3)
        changed = (pages.view(torch.uint8) != before.view(torch.uint8)).sum()
        assert 0 < changed <= 2 * shape.kv_heads * head_dim * pages.element_size()
        torch.testing.assert_close(result.float(), expected.float(), atol=1e-2, rtol=2e-2)
