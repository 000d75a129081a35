"""Paged attention of decodes: each thread block reads a part of a context for one key head.

The kernel is bound by memory bandwidth, with little startup time per context: on an H200, 96 contexts of 700
tokens are read at 3.7 TB/s, compared with 3.3 by flashinfer's kernel (FA2). Two blocks of that kernel fill a
multiprocessor, and each takes 6 µs to start. Here four blocks of 64 threads share a multiprocessor, so that
some start while others read. The last block of a context to finish merges the parts, in a fixed order.
(Flash-Decoding, Dao et al. 2023; merging by the last block is from stream-K, Osama et al. 2023.)

A single decode is also rotated and stored here: a kernel in front of this one takes it longer than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl

from engine.core.batch.decode_plan import DecodePlan
from engine.kernels.matmul.fp8_quantize import LARGEST, quantized
from engine.kernels.pdl import pdl_wait, supports_pdl

_LOG2_E: Final = tl.constexpr(1.4426950408889634)
_FEWEST_ROWS: Final = 16
"""Smallest number of rows for tensor cores: a key head's queries are padded to it."""
_TILE: Final = 64
_STAGES: Final = 3
_WARPS: Final = 2
_MERGED_AT_ONCE: Final = 8


class DecodeWorkspace:
    """Partial results of the blocks of a context. Kernels on one stream may share it."""

    def __init__(
        self, parts: int, requests: int, heads: int, kv_heads: int, dim: int, device: torch.device
    ) -> None:
        self.results = torch.empty((parts, heads, dim), dtype=torch.float32, device=device)
        self.scores = torch.empty((parts, heads), dtype=torch.float32, device=device)
        """The base-2 logarithm of the divisor of each partial result."""
        self.arrivals = torch.zeros((requests, kv_heads), dtype=torch.int32, device=device)
        """Number of finished blocks; reset to 0 by the last one."""


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Keys and values of the tokens that attend, after their queries: [R, heads + 2 * kv_heads, dim]."""

    angles: tuple[torch.Tensor, torch.Tensor] | None
    """See `rotate_store`."""
    scales: tuple[float, float] | None
    """Scales of stored keys and values, where pages are e4m3."""


def attend(
    q: torch.Tensor,
    pages: torch.Tensor,
    plan: DecodePlan[torch.Tensor],
    workspace: DecodeWorkspace,
    out: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    value_scale: float = 1.0,
    new: NewTokens | None = None,
) -> None:
    """Attend with q `[R, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`; into `out`.

    Tokens of q and `out` may have any stride; dim is a power of two. With a `window`, every part of the plan
    has tokens in it. `sinks` are [heads] float32. Pages may be e4m3: `scale` then includes that of keys.
    `new`: `rotate_store` as well, from after `q`, which it leaves as it is. Each row is of its own request.
    """
    _, num_heads, dim = q.shape
    _, _, kv_heads, page_size, _ = pages.shape
    group = num_heads // kv_heads
    table, positions = (new and new.angles) or (q, q)
    key_scale, stored_value_scale = (new and new.scales) or (1.0, 1.0)
    use_pdl = supports_pdl(q.device)
    _attend[(kv_heads, len(plan.owners))](
        q,
        pages,
        out,
        plan.owners,
        plan.indices,
        plan.first_parts,
        plan.part_tokens,
        plan.page_indptr,
        plan.last_page_lens,
        plan.pages,
        workspace.results,
        workspace.scores,
        workspace.arrivals,
        workspace.scores if sinks is None else sinks,
        table,
        positions,
        key_scale,
        stored_value_scale,
        scale * _LOG2_E.value if soft_cap is None else scale / soft_cap,
        (soft_cap or 0.0) * _LOG2_E.value,
        value_scale,
        window or 0,
        q.stride(0),
        out.stride(0),
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        kv_heads=kv_heads,
        group=group,
        rows=max(_FEWEST_ROWS, triton.next_power_of_2(group)),
        merged_rows=triton.next_power_of_2(group),
        merged_at_once=_MERGED_AT_ONCE,
        page_size=page_size,
        dim=dim,
        tile=_TILE,
        stages=_STAGES,
        windowed=window is not None,
        capped=soft_cap is not None,
        has_sinks=sinks is not None,
        stores=new is not None,
        rotary=new is not None and new.angles is not None,
        largest=LARGEST if new is not None and new.scales is not None else 0.0,
        use_pdl=use_pdl,
        num_warps=_WARPS,
        launch_pdl=use_pdl,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    q_ptr,
    pages_ptr,
    out_ptr,
    owners_ptr,
    indices_ptr,
    first_parts_ptr,
    part_tokens_ptr,
    page_indptr_ptr,
    last_page_lens_ptr,
    page_ids_ptr,
    results_ptr,
    scores_ptr,
    arrivals_ptr,
    sinks_ptr,
    table_ptr,
    positions_ptr,
    key_scale,
    stored_value_scale,
    scale,
    cap,
    value_scale,
    window,
    q_stride,
    out_stride,
    page_stride,
    kind_stride,
    head_stride,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    rows: tl.constexpr,
    merged_rows: tl.constexpr,
    merged_at_once: tl.constexpr,
    page_size: tl.constexpr,
    dim: tl.constexpr,
    tile: tl.constexpr,
    stages: tl.constexpr,
    windowed: tl.constexpr,
    capped: tl.constexpr,
    has_sinks: tl.constexpr,
    stores: tl.constexpr,
    rotary: tl.constexpr,
    largest: tl.constexpr,
    use_pdl: tl.constexpr,
):
    # Scores are base-2 logarithms. Key heads of a part are adjacent in the grid, as they are in memory.
    head = tl.program_id(0)
    owner = tl.load(owners_ptr + tl.program_id(1))
    if owner < 0:
        return
    index = tl.load(indices_ptr + tl.program_id(1))
    first_part = tl.load(first_parts_ptr + owner)
    num_parts = tl.load(first_parts_ptr + owner + 1) - first_part
    first_page = tl.load(page_indptr_ptr + owner)
    num_pages = tl.load(page_indptr_ptr + owner + 1) - first_page
    context = (num_pages - 1) * page_size + tl.load(last_page_lens_ptr + owner)
    part_tokens = tl.load(part_tokens_ptr)
    begin = index * part_tokens
    end = tl.minimum(begin + part_tokens, context)
    if windowed:
        begin = tl.maximum(begin, context - window)

    row = tl.arange(0, rows)
    feature = tl.arange(0, dim)[None, :]
    own_rows = row[:, None] < group
    query = (head * group + row[:, None]) * dim + feature
    keys = pages_ptr + head * head_stride + feature
    source = q_ptr + owner.to(tl.int64) * q_stride
    if stores:
        column = tl.arange(0, dim)
        turn = tl.load(positions_ptr + owner) if rotary else 0
        cos, sin = _angles(table_ptr + turn * dim, column, dim, rotary)
        last_page = tl.load(page_ids_ptr + first_page + num_pages - 1).to(tl.int64)
        slot = last_page * page_stride + head * head_stride + (context - 1) % page_size * dim
        is_last = end == context
        end = tl.minimum(end, context - 1)
    pdl_wait(use_pdl)
    if stores:
        first_row = (head * group + row[:, None]) * dim
        q = _turned(source + first_row, feature, cos[None, :], sin[None, :], own_rows, dim, rotary)
    else:
        q = tl.load(source + query, mask=own_rows, other=0.0)
    highest = tl.full((rows,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((rows,), dtype=tl.float32)
    sums = tl.zeros((rows, dim), dtype=tl.float32)
    if stores:  # noqa: SIM102 (this is known when the kernel is compiled, the next is not)
        if is_last:  # the part begins with its last token, which is not in the pool yet
            key = source + (kv_heads * group + head) * dim
            new_k = _turned(key, column, cos, sin, column < dim, dim, rotary)
            new_v = tl.load(key + kv_heads * dim + column)
            if largest > 0.0:
                stored_k = quantized(new_k.to(tl.float32), key_scale, largest)
                stored_v = quantized(new_v.to(tl.float32), stored_value_scale, largest)
                tl.store(pages_ptr + slot + column, stored_k)
                tl.store(pages_ptr + slot + kind_stride + column, stored_v)
                new_k, new_v = stored_k.to(q.dtype), stored_v.to(q.dtype)
            else:
                tl.store(pages_ptr + slot + column, new_k)
                tl.store(pages_ptr + slot + kind_stride + column, new_v)
            highest = tl.sum(q.to(tl.float32) * new_k.to(tl.float32)[None, :], axis=1) * scale
            if capped:
                highest = _capped(highest, cap)
            total += 1.0
            sums += new_v.to(tl.float32)[None, :]
    for start in tl.range(begin, end, tile, num_stages=stages):
        position = start + tl.arange(0, tile)
        inside = position < end
        page = tl.load(page_ids_ptr + first_page + position // page_size, mask=inside, other=0)
        at = page.to(tl.int64) * page_stride + (position % page_size) * dim
        # Memory past the end of the context is undefined and may be NaN.
        k = tl.load(keys + at[:, None], mask=inside[:, None], other=0.0).to(q.dtype)
        v = tl.load(keys + kind_stride + at[:, None], mask=inside[:, None], other=0.0).to(q.dtype)
        scores = tl.dot(q, k.T) * scale
        if capped:
            scores = _capped(scores, cap)
        scores = tl.where(inside[None, :], scores, -float("inf"))
        higher = tl.maximum(highest, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        faded = tl.exp2(highest - higher)
        total = total * faded + tl.sum(shares, axis=1)
        sums = tl.dot(shares.to(v.dtype), v, sums * faded[:, None])
        highest = higher

    outs = out_ptr + owner.to(tl.int64) * out_stride
    if num_parts == 1:
        if has_sinks:
            total += _sink(sinks_ptr, head * group + row, row < group, highest)
        result = sums / total[:, None] * value_scale
        tl.store(outs + query, result.to(out_ptr.dtype.element_ty), mask=own_rows)
    else:
        result = sums / total[:, None] * value_scale
        num_heads: tl.constexpr = kv_heads * group
        part = (first_part + index).to(tl.int64) * num_heads
        tl.store(results_ptr + part * dim + query, result, mask=own_rows)
        tl.store(scores_ptr + part + head * group + row, highest + tl.log2(total), mask=row < group)
        tl.debug_barrier()  # all threads' writes are visible to the one that signals
        arrived = tl.atomic_add(arrivals_ptr + owner * kv_heads + head, 1, sem="acq_rel", scope="gpu")
        if arrived == num_parts - 1:
            tl.store(arrivals_ptr + owner * kv_heads + head, 0)
            own = tl.arange(0, merged_rows)
            merged = _merged(
                results_ptr + first_part.to(tl.int64) * num_heads * dim,
                scores_ptr + first_part.to(tl.int64) * num_heads,
                sinks_ptr,
                num_parts,
                head * group + own,
                own < group,
                num_heads,
                dim,
                merged_rows,
                merged_at_once,
                has_sinks,
            )
            place = outs + (head * group + own[:, None]) * dim + feature
            tl.store(place, merged.to(out_ptr.dtype.element_ty), mask=own[:, None] < group)


@triton.jit
def _capped(scores, cap):  # type: ignore[no-untyped-def]
    """cap * tanh(scores)"""
    return cap * (1.0 - 2.0 / (1.0 + tl.exp2(2.0 * _LOG2_E * scores)))


@triton.jit  # type: ignore[untyped-decorator]
def _angles(table_ptr, column, dim: tl.constexpr, rotary: tl.constexpr):  # type: ignore[no-untyped-def]
    """What features [dim] are multiplied with, and the features half a head away from them."""
    if rotary:
        half: tl.constexpr = dim // 2
        sin = tl.load(table_ptr + half + column % half)
        return tl.load(table_ptr + column % half), tl.where(column < half, -sin, sin)
    return 1.0 + 0.0 * column, 0.0 * column


@triton.jit  # type: ignore[untyped-decorator]
def _turned(  # type: ignore[no-untyped-def]
    row_ptr, column, cos, sin, inside, dim: tl.constexpr, rotary: tl.constexpr
):
    """Rows of queries or keys, rotated."""
    own = tl.load(row_ptr + column, mask=inside, other=0.0)
    if rotary:
        other = tl.load(row_ptr + (column + dim // 2) % dim, mask=inside, other=0.0)
        own = (own.to(tl.float32) * cos + other.to(tl.float32) * sin).to(own.dtype)
    return own


@triton.jit
def _sink(sinks_ptr, heads, own_heads, highest):  # type: ignore[no-untyped-def]
    """What the sinks of `heads` add to divisors of exponentials relative to `highest`."""
    sinks = tl.load(sinks_ptr + heads, mask=own_heads, other=-float("inf"))
    return tl.exp2(sinks * _LOG2_E - highest)


@triton.jit  # type: ignore[untyped-decorator]
def _merged(  # type: ignore[no-untyped-def]
    results_ptr,
    scores_ptr,
    sinks_ptr,
    num_parts,
    rows,
    own_rows,
    num_heads: tl.constexpr,
    dim: tl.constexpr,
    num_rows: tl.constexpr,
    at_once: tl.constexpr,
    has_sinks: tl.constexpr,
):
    """Results of a context's parts, weighted by their scores: [num_rows, dim]."""
    feature = tl.arange(0, dim)[None, None, :]
    highest = tl.full((num_rows,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((num_rows,), dtype=tl.float32)
    sums = tl.zeros((num_rows, dim), dtype=tl.float32)
    for first in tl.range(0, num_parts, at_once):
        part = first + tl.arange(0, at_once)
        inside = (part < num_parts)[:, None] & own_rows[None, :]
        place = part[:, None] * num_heads + rows[None, :]
        # Other multiprocessors wrote them; this one's L1 cache may hold stale values of an earlier layer.
        score = tl.load(scores_ptr + place, mask=inside, other=-float("inf"), cache_modifier=".cg")
        result = tl.load(
            results_ptr + place[:, :, None] * dim + feature,
            mask=inside[:, :, None],
            other=0.0,
            cache_modifier=".cg",
        )
        higher = tl.where(own_rows, tl.maximum(highest, tl.max(score, axis=0)), 0.0)
        weight = tl.exp2(score - higher[None, :])
        faded = tl.exp2(highest - higher)
        total = total * faded + tl.sum(weight, axis=0)
        sums = sums * faded[:, None] + tl.sum(weight[:, :, None] * result, axis=0)
        highest = higher
    if has_sinks:
        total += _sink(sinks_ptr, rows, own_rows, highest)
    return sums / tl.where(own_rows, total, 1.0)[:, None]
