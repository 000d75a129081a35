"""CPU time of attention, one layer of bfloat16 on one thread, by what multiplies it. Needs no model.

    python -m benchmarks.micro.cpu_attention

torch is SDPA on keys and values that need not be gathered. Times are CPU times of the thread, medians of
rounds that run each kind in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.lib.machine import describe_machine
from common.kv_groups import full_group
from engine.core.batch.batch import scratch_batch
from engine.core.batch.block_tables import BlockTables
from engine.core.largest_step import Span
from engine.kernels.cpu.library import attention_products, cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.cpu_backend import CpuAttention
from engine.modeling.layers.layer_attention import LayerAttention

_PAGE_SIZE: Final = 16


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--heads", default="9x3x64", metavar="QUERYxKEYxSIZE", help="default: SmolLM2's")
    parser.add_argument("--spans", nargs="+", default=["0+256", "1024+256", "4096+256", "1024+1"])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    heads, kv_heads, head_dim = (int(number) for number in options.heads.split("x"))
    names = [products.name for products in attention_products()]
    table = Table(
        "context + tokens, ms", *names, "torch", title=f"{describe_machine()}, heads {options.heads}"
    )
    for span in options.spans:
        before, tokens = (int(number) for number in span.split("+"))
        calls = _calls(Span(before, tokens), heads, kv_heads, head_dim)
        rounds = [[_milliseconds(call) for call in calls] for _ in range(options.rounds)]
        table.add_row(span, *(f"{statistics.median(times):.3f}" for times in zip(*rounds, strict=True)))
    Console().print(table)


def _calls(span: Span, heads: int, kv_heads: int, head_dim: int) -> list[Callable[[], object]]:
    context = span.start + span.length
    count = -(-context // _PAGE_SIZE)
    pool = KVPool(
        num_pages=count,
        groups=full_group(1),
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        page_size=_PAGE_SIZE,
        dtype=torch.bfloat16,
        device="cpu",
    )
    pool.tensor.normal_()
    batch = scratch_batch([span], 0, _PAGE_SIZE, torch.device("cpu"))
    group = batch.groups[0]
    tables = BlockTables.of([list(range(count))])
    batch = replace(batch, groups=[replace(group, slot_mapping=batch.positions, block_tables=tables)])
    qkv = torch.randn(span.length, heads + 2 * kv_heads, head_dim).to(torch.bfloat16)
    layers = [LayerAttention(scale=head_dim**-0.5)]
    calls: list[Callable[[], object]] = []
    for products in attention_products():
        kernels = cpu_kernels(torch.bfloat16)
        assert kernels is not None
        kernels.products = products
        attention = CpuAttention(pool, heads, layers, kernels)
        attention.prepare(batch)
        calls.append(lambda attention=attention: attention.forward(0, qkv, None))  # type: ignore[misc]
    queries = torch.randn(1, heads, span.length, head_dim).to(torch.bfloat16)
    keys, values = torch.randn(2, 1, kv_heads, context, head_dim).to(torch.bfloat16)
    seen = torch.from_numpy(np.arange(context) <= np.arange(span.start, context)[:, None])
    mask = torch.zeros(seen.shape, dtype=torch.bfloat16).masked_fill(~seen, -torch.inf)
    calls.append(lambda: scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True))
    return calls


def _milliseconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return 1000 * (time.thread_time() - began)


if __name__ == "__main__":
    main()
