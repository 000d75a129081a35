"""Rotation and KV store in one kernel: the work between a layer's QKV product and its attention.

Queries and keys are rotated by their positions, keys and values are written to the page pool, and queries to
the input of attention. Separate kernels would read the same rows up to three times.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.fp8_quantize import LARGEST, quantized
from engine.kernels.pdl import pdl_wait, supports_pdl


def rotate_store(
    qkv: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor] | None,
    pages: torch.Tensor,
    slots: torch.Tensor,
    queries: torch.Tensor,
    scales: tuple[float, float] | None = None,
) -> None:
    """Rotate; write queries to `queries`, keys and values to their slots: page * page_size + offset.

    `qkv` is `[T, heads + 2 * kv_heads, head_dim]`, of any stride between tokens; `angles` are the table of
    `rope_table` and the positions [T], None where positions are not rotary. `pages` is one layer of the pool,
    `[page, 2, kv_head, page_size, head_dim]`, whose head_dim is a power of two; `slots` is [T] int64;
    `queries` is `[T, heads, head_dim]` of any stride between tokens, and may be a view of `qkv`.
    `scales`: of keys and of values, where `pages` are e4m3.
    """
    num_tokens, num_rows, head_dim = qkv.shape
    if num_tokens == 0:
        return
    kv_heads = pages.shape[2]
    num_heads = num_rows - 2 * kv_heads
    table, positions = angles or (qkv, slots)
    of_keys, of_values = scales or (1.0, 1.0)
    block = triton.next_power_of_2(kv_heads)
    use_pdl = supports_pdl(qkv.device)
    _rotate_store[(num_tokens, triton.cdiv(num_heads, block) + 2)](
        qkv,
        table,
        positions,
        pages,
        slots,
        queries,
        qkv.stride(0),
        queries.stride(0),
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        of_keys,
        of_values,
        num_heads=num_heads,
        kv_heads=kv_heads,
        page_size=pages.shape[3],
        half=head_dim // 2,
        block=block,
        rotary=angles is not None,
        largest=LARGEST if scales is not None else 0.0,
        use_pdl=use_pdl,
        num_warps=max(1, min(8, block * head_dim // 512)),
        launch_pdl=use_pdl,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_store(  # type: ignore[no-untyped-def]
    qkv_ptr,
    table_ptr,
    positions_ptr,
    pages_ptr,
    slots_ptr,
    queries_ptr,
    qkv_stride,
    queries_stride,
    page_stride,
    kind_stride,
    head_stride,
    key_scale,
    value_scale,
    num_heads: tl.constexpr,
    kv_heads: tl.constexpr,
    page_size: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    rotary: tl.constexpr,
    largest: tl.constexpr,
    use_pdl: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    # Programs of a token: values, keys, then several heads of queries each.
    part = tl.program_id(1)
    head = tl.arange(0, block)[:, None]
    column = tl.arange(0, half)[None, :]
    if part < 2:
        first = num_heads + (1 - part) * kv_heads
        inside = (head < kv_heads) & (column < half)
    else:
        first = (part - 2) * block
        inside = (first + head < num_heads) & (column < half)
    source = qkv_ptr + token * qkv_stride + (first + head) * 2 * half + column
    pdl_wait(use_pdl)
    left = tl.load(source, mask=inside)
    right = tl.load(source + half, mask=inside)
    if rotary:  # noqa: SIM102 (this is known when the kernel is compiled, the next is not)
        if part > 0:
            row = table_ptr + tl.load(positions_ptr + token) * 2 * half + column
            cos, sin = tl.load(row), tl.load(row + half)
            a, b = left.to(tl.float32), right.to(tl.float32)
            left = (a * cos - b * sin).to(left.dtype)
            right = (b * cos + a * sin).to(right.dtype)
    if part < 2:
        slot = tl.load(slots_ptr + token)
        place = pages_ptr + (slot // page_size) * page_stride + (slot % page_size) * 2 * half
        target = place + (1 - part) * kind_stride + head * head_stride + column
        if largest > 0.0:
            scale = tl.where(part == 1, key_scale, value_scale)
            tl.store(target, quantized(left.to(tl.float32), scale, largest), mask=inside)
            tl.store(target + half, quantized(right.to(tl.float32), scale, largest), mask=inside)
        else:
            tl.store(target, left, mask=inside)
            tl.store(target + half, right, mask=inside)
    else:
        # Another name: branches must not give a variable two types.
        query = queries_ptr + token * queries_stride + (first + head) * 2 * half + column
        tl.store(query, left, mask=inside)
        tl.store(query + half, right, mask=inside)
