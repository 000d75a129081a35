"""The compiled attention kernel against attention written out in float64, and against the torch backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kv_groups import full_group
from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.block_tables import BlockTables
from engine.kernels.cpu.library import CpuKernels, cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import TorchAttention
from engine.mixers.attention.cpu_backend import CpuAttention
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.cpu_ops import TableRotation
from engine.modeling.layers.ops.ops import Ops
from tests.unit.engine.dense_attention import attend, plain

pytestmark = pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="there is no compiler")

LAYERS = 2
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Shape:
    page_size: int
    kv_heads: int
    group: int
    head_dim: int
    dtype: torch.dtype

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def pool_and_batch(shape: Shape, requests: list[tuple[int, int]], seed: int) -> tuple[KVPool, Batch]:
    """`requests` are (tokens in the pool already, tokens of this step). Unwritten memory is NaN."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-(before + new) // shape.page_size) for before, new in requests]
    pool = KVPool(
        num_pages=sum(counts) + 3,
        groups=full_group(LAYERS),
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=shape.page_size,
        dtype=shape.dtype,
        device="cpu",
    )
    pool.tensor.fill_(torch.nan)
    pages = np.random.default_rng(seed).permutation(pool.num_pages).astype(np.int64)
    tables = np.split(pages[: sum(counts)], np.cumsum(counts)[:-1])
    positions, slots = [], []
    for (before, new), table in zip(requests, tables, strict=True):
        at = np.arange(before, before + new)
        positions.append(at)
        slots.append(table[at // shape.page_size] * shape.page_size + at % shape.page_size)
        earlier = np.arange(before)
        for layer in range(LAYERS):
            kv = torch.randn(2, before, shape.kv_heads, shape.head_dim, generator=generator)
            page = torch.from_numpy(table[earlier // shape.page_size])
            offset = torch.from_numpy(earlier % shape.page_size)
            for which in range(2):
                pool.layer(layer)[:, which].transpose(1, 2)[page, offset] = kv[which].to(shape.dtype)
    lengths = np.array([new for _, new in requests])
    none, zeros = torch.empty(0, dtype=torch.int64), np.zeros(int(lengths.sum()))
    context_lens = np.array([before + new for before, new in requests], dtype=np.int64)
    lists = BlockTables.of([table.tolist() for table in tables])
    return pool, Batch(
        rows=torch.from_numpy(np.stack([zeros, *map(np.concatenate, (positions, slots))])).long(),
        num_chunks=int((lengths > 1).sum()),
        query_indptr=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        context_lens=context_lens,
        groups=[GroupTables(torch.from_numpy(np.concatenate(slots)), lists, context_lens)],
        sample_rows=none,
        scored_rows=none,
        sample_slots=none,
        pending_rows=none,
        pending_slots=none,
    )


def written_out(
    pool: KVPool, batch: Batch, layer: int, queries: torch.Tensor, rule: LayerAttention, device: str = "cpu"
) -> torch.Tensor:
    """What rotated `queries` attend to, in float64, by the keys and values that lie in the pool. Computed on
    `device`, where the result is."""
    out = torch.empty(queries.shape, dtype=torch.float64, device=device)
    lists = batch.groups[0].block_tables
    for r, context in enumerate(batch.context_lens.tolist()):
        rows = slice(int(batch.query_indptr[r]), int(batch.query_indptr[r + 1]))
        table = torch.from_numpy(lists.pages[lists.indptr[r] : lists.indptr[r + 1]])
        kv = pool.layer(layer)[table].to(device).permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context].double()
        keys, values = kv.transpose(1, 2)
        out[rows] = attend(queries[rows].to(device).double(), keys, values, rule)
    return out


def check(
    shape: Shape,
    requests: list[tuple[int, int]],
    *,
    rotated: bool = True,
    seed: int = 0,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    kernels: CpuKernels | None = None,
) -> None:
    requests = sorted(requests, key=lambda request: request[1] == 1)
    pool, batch = pool_and_batch(shape, requests, seed)
    kernels = kernels or cpu_kernels(shape.dtype)
    assert kernels is not None
    generator = torch.Generator().manual_seed(seed + 1)
    sink = torch.randn(shape.heads, generator=generator) * 4 if sinks else None
    rule = LayerAttention(scale=shape.head_dim**-0.5, window=window, soft_cap=soft_cap, sinks=sink)
    attention = CpuAttention(pool, shape.heads, [*plain(LAYERS - 1, shape.head_dim), rule], kernels)
    attention.prepare(batch)
    angles = torch.randn(int(batch.positions.max()) + 1, shape.head_dim // 2, generator=generator)
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    for layer, rule_of_layer in enumerate([*plain(LAYERS - 1, shape.head_dim), rule]):
        size = (len(batch.input_ids), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        qkv = torch.randn(size, generator=generator).to(shape.dtype)
        queries, keys, values = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        if rotated:
            turn = Ops().rotation(table, batch.positions, torch.float64).turn
            queries, keys = turn(queries.double()), turn(keys.double())
        rotation = TableRotation(table, batch.positions) if rotated else None

        result = attention.forward(layer, qkv.clone(), rotation)

        slots = batch.groups[0].slot_mapping
        page, offset = slots // shape.page_size, slots % shape.page_size
        tolerance = TOLERANCE[shape.dtype]
        for which, wanted in enumerate((keys, values)):
            stored = pool.layer(layer)[:, which].transpose(1, 2)[page, offset]
            torch.testing.assert_close(stored.double(), wanted.double(), atol=tolerance, rtol=tolerance)
        expected = written_out(pool, batch, layer, queries, rule_of_layer)
        torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


shapes = st.builds(
    Shape,
    page_size=st.sampled_from([1, 3, 16, 64]),
    kv_heads=st.sampled_from([1, 3]),
    group=st.sampled_from([1, 2, 3, 7, 17]),
    head_dim=st.sampled_from([8, 32, 64, 80, 96, 128, 256]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
contexts = st.sampled_from([0, 0, 1, 5, 15, 16, 63, 64, 100, 255, 256, 300, 530])
news = st.sampled_from([1, 1, 1, 2, 3, 16, 33, 65, 130])


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    requests=st.lists(st.tuples(contexts, news), min_size=1, max_size=4),
    rotated=st.booleans(),
    seed=st.integers(0, 1000),
    window=st.sampled_from([None, 1, 5, 64, 100, 257, 1000]),
    soft_cap=st.sampled_from([None, None, 1.5, 30.0]),
    sinks=st.booleans(),
)
def test_any_batch_attends_as_written_out(
    shape: Shape,
    requests: list[tuple[int, int]],
    rotated: bool,
    seed: int,
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
) -> None:
    check(shape, requests, rotated=rotated, seed=seed, window=window, soft_cap=soft_cap, sinks=sinks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_share_long_contexts(threads: int, dtype: torch.dtype) -> None:
    shape = Shape(page_size=16, kv_heads=3, group=3, head_dim=64, dtype=dtype)

    check(shape, [(5000, 70), (2047, 1), (3000, 1), (4090, 40)])
    check(shape, [(5000, 70), (2047, 1), (3000, 1), (4090, 40)], window=1500, sinks=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_does_not_depend_on_threads_or_the_rest_of_the_batch(dtype: torch.dtype) -> None:
    shape = Shape(page_size=4, kv_heads=2, group=2, head_dim=32, dtype=dtype)
    kernels = cpu_kernels(dtype)
    assert kernels is not None
    results = []
    for threads, others in ((1, []), (2, [(40, 1), (700, 1)])):
        pool, batch = pool_and_batch(shape, [(600, 1), *others], seed=3)
        generator = torch.Generator().manual_seed(5)
        tables = batch.groups[0].block_tables
        for token in range(601):  # the first request's memory, equal in both runs
            page = int(tables.pages[token // shape.page_size])
            kv = torch.randn(2, shape.kv_heads, shape.head_dim, generator=generator).to(dtype)
            pool.layer(0)[page, :, :, token % shape.page_size] = kv
        qkv = torch.randn(len(batch.input_ids), 8, 32, generator=generator).to(dtype)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        attention = CpuAttention(pool, shape.heads, plain(LAYERS, shape.head_dim), kernels)
        attention.prepare(batch)
        results.append(attention.forward(0, qkv, None)[0])
        torch.set_num_threads(before)

    assert torch.equal(*results)


def test_what_is_not_finite_stays_with_its_request() -> None:
    shape = Shape(page_size=16, kv_heads=2, group=2, head_dim=64, dtype=torch.float32)
    pool, batch = pool_and_batch(shape, [(70, 40), (0, 20), (100, 1), (30, 1)], seed=0)
    kernels = cpu_kernels(torch.float32)
    assert kernels is not None
    attention = CpuAttention(pool, shape.heads, plain(LAYERS, shape.head_dim), kernels)
    attention.prepare(batch)
    qkv = torch.randn(62, 8, 64)
    qkv[0] = torch.nan
    qkv[60] = torch.nan

    result = attention.forward(0, qkv, None)

    finite = result.isfinite().flatten(1).all(1)
    assert not finite[:40].any()
    assert not finite[60]
    assert finite[40:60].all()
    assert finite[61]


def test_rotation_that_is_no_table_is_applied_before_the_kernel() -> None:
    shape = Shape(page_size=16, kv_heads=2, group=2, head_dim=64, dtype=torch.float32)
    table = torch.randn(40, 64)
    results = []
    for backend in (CpuAttention, TorchAttention):
        pool, batch = pool_and_batch(shape, [(0, 40)], seed=0)
        pool.tensor[:] = 0
        kernels = cpu_kernels(torch.float32)
        assert kernels is not None
        layers = plain(LAYERS, shape.head_dim)
        attention = (
            CpuAttention(pool, 4, layers, kernels)
            if backend is CpuAttention
            else TorchAttention(pool, 4, layers)
        )
        attention.prepare(batch)
        qkv = torch.randn(40, 8, 64, generator=torch.Generator().manual_seed(1))
        rotation = Ops().rotation(table, batch.positions, torch.float32)
        results.append(attention.forward(1, qkv, rotation))

    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
