"""Paged attention whose rows do not depend on each other: a token has the same bits in a decode and a chunk.

The context is divided at multiples of SPLIT positions, and each split into blocks of BLOCK: both are counted
from the start of the request, whatever its pages, chunks and windows are. A split's softmax begins from
nothing, and splits are merged in their order, by the last program of a tile to finish or by one that has
computed all of them. Blocks without a visible key change nothing: exp2(-inf) is 0, and the sums are scaled
by 1. Multiplications and additions are not fused by the compiler, which would do so differently in each
variant of the kernel. (Flash-Decoding, Dao et al. 2023.)
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.pdl import pdl_wait, supports_pdl

_LOG2_E: Final = tl.constexpr(1.4426950408889634)
BLOCK: Final = 64
SPLIT: Final = 512
ITEM: Final = 8
"""Integers of an item: first row, tokens (0: nothing to do), position of the first token, where the pages of
the request begin in the table, position of the first page, first split and the one after the last, and where
its results are kept if it is parted."""


class Tile(NamedTuple):
    rows: int
    warps: int
    stages: int
    two_phases: bool = False
    """Whether blocks that all rows see whole are computed without a mask."""
    parted: bool = False
    """Whether each item stores the results of its splits, and the last one of a tile merges them."""


class Partials(NamedTuple):
    """Results of splits."""

    sums: torch.Tensor
    """[S, heads, dim] float32, for S pairs of a token and a split."""
    scores: torch.Tensor
    """[S, heads, 2]: highest scores, and sums of shares."""
    arrivals: torch.Tensor
    """[S, kv_heads] int32: finished splits of a tile; reset to 0 by the last one."""


def attend(
    q: torch.Tensor,
    pages: torch.Tensor,
    items: torch.Tensor,
    table: torch.Tensor,
    partials: Partials,
    out: torch.Tensor,
    *,
    tile: Tile,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attend with q `[T, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`; into `out`.

    `items` [P, ITEM] int32 say what a program computes: see `plan_items`. `table`: page ids, int32.
    Tokens of q and `out` may have any stride; dim is a power of two; `scale` is above 0. `sinks`: [heads]
    float32.
    """
    _, num_heads, dim = q.shape
    _, _, kv_heads, page_size, _ = pages.shape
    use_pdl = supports_pdl(q.device)
    _attend[(kv_heads, len(items))](
        q,
        pages,
        out,
        items,
        table,
        *partials,
        partials.scores if sinks is None else sinks,
        scale * _LOG2_E.value if soft_cap is None else scale / soft_cap,
        (soft_cap or 0.0) * _LOG2_E.value,
        window or 0,
        q.stride(0),
        out.stride(0),
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        kv_heads=kv_heads,
        group=num_heads // kv_heads,
        page_size=page_size,
        dim=dim,
        rows=tile.rows,
        block=BLOCK,
        split=SPLIT,
        item_ints=ITEM,
        stages=tile.stages,
        two_phases=tile.two_phases,
        parted=tile.parted,
        windowed=window is not None,
        capped=soft_cap is not None,
        has_sinks=sinks is not None,
        use_pdl=use_pdl,
        num_warps=tile.warps,
        launch_pdl=use_pdl,
        enable_fp_fusion=False,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q_ptr,
    pages_ptr,
    out_ptr,
    items_ptr,
    table_ptr,
    sums_ptr,
    scores_ptr,
    arrivals_ptr,
    sinks_ptr,
    scale,
    cap,
    window,
    q_stride,
    out_stride,
    page_stride,
    kind_stride,
    head_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    page_size: tl.constexpr,
    dim: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
    split: tl.constexpr,
    item_ints: tl.constexpr,
    stages: tl.constexpr,
    two_phases: tl.constexpr,
    parted: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
    has_sinks: tl.constexpr,
    use_pdl: tl.constexpr,
):
    num_heads: tl.constexpr = kv_heads * group
    head = tl.program_id(0)
    item = items_ptr + tl.program_id(1) * item_ints
    tokens = tl.load(item + 1)
    if tokens == 0:
        return
    first_row, first_position = tl.load(item).to(tl.int64), tl.load(item + 2)
    pages_at, offset = tl.load(item + 3), tl.load(item + 4)
    split_begin, split_end, slot = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7)
    end = tl.minimum(first_position + tokens, split_end * split)
    begin = split_begin * split
    if windowed:
        begin = tl.maximum(begin, (first_position + 1 - window) // block * block)

    row = tl.arange(0, rows)
    feature = tl.arange(0, dim)[None, :]
    token = row // group
    own = (token < tokens) & (row < rows // group * group)
    position = first_position + token
    query = token[:, None].to(tl.int64)
    of_head = (head * group + row % group)[:, None] * dim + feature
    pdl_wait(use_pdl)
    q = tl.load(q_ptr + (first_row + query) * q_stride + of_head, mask=own[:, None], other=0.0)
    keys = pages_ptr + head * head_stride + feature
    page_ids = table_ptr + pages_at

    highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    sums = tl.zeros((rows, dim), dtype=tl.float32)
    all_highest, all_total, all_sums = highest, total, sums
    cell = (slot + token).to(tl.int64) * num_heads + head * group + row % group
    stride = tokens.to(tl.int64) * num_heads
    if parted:
        for part in range(split_begin, split_end):
            highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
            total = tl.zeros((rows,), dtype=tl.float32)
            sums = tl.zeros((rows, dim), dtype=tl.float32)
            first = tl.maximum(part * split, begin)
            page = _pages(page_ids, first, offset, end, page_size, block)
            for start in tl.range(
                first, tl.minimum(first // split * split + split, end), block, num_stages=stages
            ):
                after = _pages(page_ids, start + block, offset, end, page_size, block)
                k, v = _keys_and_values(
                    start, page, keys, offset, end, page_stride, kind_stride, page_size, dim, block, True
                )
                highest, total, sums = _added(
                    start, tl.dot(q, k.T), v, highest, total, sums, position, window, scale, cap, block, True,
                    windowed, capped,
                )  # fmt: skip
                page = after
            tl.store(sums_ptr + cell[:, None] * dim + feature, sums, mask=own[:, None])
            tl.store(scores_ptr + cell * 2, highest, mask=own)
            tl.store(scores_ptr + cell * 2 + 1, total, mask=own)
            cell += stride
        first_split = 0
        if windowed:
            first_split = tl.maximum(first_position + 1 - window, 0) // split
        parts = (first_position + tokens - 1) // split + 1 - first_split
        base = slot - (split_begin - first_split) * tokens
        tl.debug_barrier()  # all threads' writes are visible to the one that signals
        arrivals = arrivals_ptr + base * kv_heads + head
        done = split_end - split_begin
        if tl.atomic_add(arrivals, done, sem="acq_rel", scope="gpu") + done < parts:
            return
        tl.store(arrivals, 0)
        cell = (base + token).to(tl.int64) * num_heads + head * group + row % group
        for _ in range(parts):
            # Other multiprocessors wrote them; this one's L1 cache may hold stale values of an earlier layer.
            highest = tl.load(scores_ptr + cell * 2, mask=own, other=-float("inf"), cache_modifier=".cg")
            total = tl.load(scores_ptr + cell * 2 + 1, mask=own, other=0.0, cache_modifier=".cg")
            at = sums_ptr + cell[:, None] * dim + feature
            sums = tl.load(at, mask=own[:, None], other=0.0, cache_modifier=".cg")
            all_highest, all_total, all_sums = _merged(all_highest, all_total, all_sums, highest, total, sums)
            cell += stride
    else:
        unmasked = begin
        if two_phases and not windowed:
            unmasked = tl.minimum((first_position + 1) // block * block, end)
            page = _pages(page_ids, begin, offset, end, page_size, block)
            for start in tl.range(begin, unmasked, block, num_stages=stages):
                after = _pages(page_ids, start + block, offset, end, page_size, block)
                k, v = _keys_and_values(
                    start, page, keys, offset, end, page_stride, kind_stride, page_size, dim, block, False
                )
                scores = tl.dot(q, k.T)
                # Not at the end of the previous block: there the compiler does not wait for its product.
                if start % split == 0:
                    all_highest, all_total, all_sums = _merged(
                        all_highest, all_total, all_sums, highest, total, sums
                    )
                    highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
                    total = tl.zeros((rows,), dtype=tl.float32)
                    sums = tl.zeros((rows, dim), dtype=tl.float32)
                highest, total, sums = _added(
                    start, scores, v, highest, total, sums, position, window, scale, cap, block, False, False,
                    capped,
                )  # fmt: skip
                page = after
        page = _pages(page_ids, unmasked, offset, end, page_size, block)
        for start in tl.range(unmasked, end, block, num_stages=stages):
            after = _pages(page_ids, start + block, offset, end, page_size, block)
            k, v = _keys_and_values(
                start, page, keys, offset, end, page_stride, kind_stride, page_size, dim, block, True
            )
            scores = tl.dot(q, k.T)
            if start % split == 0:
                all_highest, all_total, all_sums = _merged(
                    all_highest, all_total, all_sums, highest, total, sums
                )
                highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
                total = tl.zeros((rows,), dtype=tl.float32)
                sums = tl.zeros((rows, dim), dtype=tl.float32)
            highest, total, sums = _added(
                start, scores, v, highest, total, sums, position, window, scale, cap, block, True, windowed,
                capped,
            )  # fmt: skip
            page = after
        all_highest, all_total, all_sums = _merged(all_highest, all_total, all_sums, highest, total, sums)
    if has_sinks:
        all_total += tl.exp2(tl.load(sinks_ptr + head * group + row % group) * _LOG2_E - all_highest)
    result = all_sums / tl.where(own, all_total, 1.0)[:, None]
    outs = out_ptr + (first_row + query) * out_stride + of_head
    tl.store(outs, result.to(out_ptr.dtype.element_ty), mask=own[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _keys_and_values(  # type: ignore[no-untyped-def]
    start,
    page,
    keys,
    offset,
    end,
    page_stride,
    kind_stride,
    page_size: tl.constexpr,
    dim: tl.constexpr,
    block: tl.constexpr,
    masked: tl.constexpr,
):
    """Keys and values of a block, [block, dim]."""
    at = start + tl.arange(0, block)
    place = keys + (page.to(tl.int64) * page_stride + (at % page_size) * dim)[:, None]
    if masked:
        # Memory past the end of the context is undefined and may be NaN.
        held = ((at >= offset) & (at < end))[:, None]
        return tl.load(place, mask=held, other=0.0), tl.load(place + kind_stride, mask=held, other=0.0)
    return tl.load(place), tl.load(place + kind_stride)


@triton.jit  # type: ignore[untyped-decorator]
def _added(  # type: ignore[no-untyped-def]
    start,
    scores,
    v,
    highest,
    total,
    sums,
    position,
    window,
    scale,
    cap,
    block: tl.constexpr,
    masked: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
):
    """The running softmax after a block. Scores become base-2 logarithms."""
    if capped:
        scores = cap * (1.0 - 2.0 / (1.0 + tl.exp2(2.0 * _LOG2_E * (scores * scale))))
    if masked:
        at = start + tl.arange(0, block)
        visible = at[None, :] <= position[:, None]
        if windowed:
            visible = visible & (at[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, -float("inf"))
    best = tl.max(scores, axis=1)
    higher = tl.maximum(highest, best if capped else best * scale)
    base = tl.where(higher == -float("inf"), 0.0, higher)
    if capped:
        shares = tl.exp2(scores - base[:, None])
    else:
        shares = tl.exp2(tl.fma(scores, tl.zeros_like(scores) + scale, tl.zeros_like(scores) - base[:, None]))
    faded = tl.exp2(highest - base)
    total = tl.fma(total, faded, tl.sum(shares, axis=1))
    sums = tl.dot(shares.to(v.dtype), v, sums * faded[:, None])
    return higher, total, sums


@triton.jit  # type: ignore[untyped-decorator]
def _pages(page_ids, start, offset, end, page_size: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """Pages of the keys of a block. Loaded a block ahead: those of keys wait for them."""
    at = start + tl.arange(0, block)
    return tl.load(page_ids + (at - offset) // page_size, mask=(at >= offset) & (at < end), other=0)


@triton.jit
def _merged(all_highest, all_total, all_sums, highest, total, sums):  # type: ignore[no-untyped-def]
    """The softmax of the splits so far and the next one."""
    higher = tl.maximum(all_highest, highest)
    base = tl.where(higher == -float("inf"), 0.0, higher)
    faded, share = tl.exp2(all_highest - base), tl.exp2(highest - base)
    all_total = tl.fma(all_total, faded, total * share)
    all_sums = tl.fma(all_sums, tl.zeros_like(sums) + faded[:, None], sums * share[:, None])
    return higher, all_total, all_sums
