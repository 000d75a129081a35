"""Attention on the GPU, in every rule by which a layer attends, against attention written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.attention import attention_for
from engine.batch.batch import Batch
from engine.kv_cache.pool import KVPool
from engine.layers.layer_attention import LayerAttention
from tests.unit.engine.attention.test_cpu_attention import LAYERS, Shape, pool_and_batch, written_out

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
    "chunks and decodes": [(0, 500), (2500, 200), (50, 1), (3000, 1)],
}


def moved(pool: KVPool, batch: Batch) -> tuple[KVPool, Batch]:
    device = torch.device("cuda")
    there = KVPool(
        num_pages=pool.num_pages,
        num_layers=pool.num_layers,
        num_kv_heads=pool.num_kv_heads,
        head_dim=pool.head_dim,
        page_size=pool.page_size,
        dtype=pool.tensor.dtype,
        device=device,
    )
    there.tensor.copy_(pool.tensor.nan_to_num())
    tensors: dict[str, Any] = {
        name: getattr(batch, name).to(device) for name in ("input_ids", "positions", "slot_mapping")
    }
    return there, replace(batch, **tensors)


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("requests", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("name", RULES)
def test_layers_with_windows_soft_caps_and_sinks_attend_as_written_out(
    name: str, requests: list[tuple[int, int]], head_dim: int
) -> None:
    """The first layer is plain: layers of different rules share buffers."""
    shape = Shape(page_size=16, kv_heads=4, group=4, head_dim=head_dim, dtype=torch.bfloat16)
    pool, batch = pool_and_batch(shape, requests, seed=0)
    rules = [RULES["plain"], RULES[name]]
    on_device = [rule if rule.sinks is None else replace(rule, sinks=rule.sinks.to("cuda")) for rule in rules]
    there, its_batch = moved(pool, batch)
    attention = attention_for("flashinfer", there, shape.heads, on_device, max_requests=8)
    attention.prepare(its_batch)
    for layer in range(LAYERS):
        size = (len(batch.input_ids), shape.heads + 2 * shape.kv_heads, head_dim)
        qkv = torch.randn(size, generator=torch.Generator().manual_seed(layer)).bfloat16()

        result = attention.forward(layer, qkv.cuda(), None).cpu()

        pool.tensor[:, layer].copy_(there.tensor[:, layer])
        expected = written_out(pool, batch, layer, qkv[:, : shape.heads], rules[layer])
        torch.testing.assert_close(result.double(), expected, atol=1e-2, rtol=3e-2)
