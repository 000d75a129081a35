"""Writing a step's keys and values into the page pool, one kernel a layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["store_kv"]


def store_kv(k: torch.Tensor, v: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    """Put token t's key and value where `slots[t]` says: page * page_size + offset.

    `k` and `v` are `[T, kv_head, head_dim]`, of any stride between tokens but with heads and features side by
    side; `pages` is one layer of the pool, `[page, 2, kv_head, page_size, head_dim]`, whose head_dim is a
    power of two; `slots` is [T] int64.
    """
    num_tokens, num_heads, head_dim = k.shape
    if num_tokens == 0:
        return
    _store_kv[(num_tokens, 2)](
        k,
        v,
        pages,
        slots,
        k.stride(0),
        v.stride(0),
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        page_size=pages.shape[3],
        head_dim=head_dim,
        width=num_heads * head_dim,
        block=triton.next_power_of_2(num_heads * head_dim),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _store_kv(  # type: ignore[no-untyped-def]
    k_ptr,
    v_ptr,
    pages_ptr,
    slots_ptr,
    k_stride,
    v_stride,
    page_stride,
    kind_stride,
    head_stride,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    slot = tl.load(slots_ptr + token)
    column = tl.arange(0, block)
    inside = column < width
    if kind == 0:
        values = tl.load(k_ptr + token * k_stride + column, mask=inside)
    else:
        values = tl.load(v_ptr + token * v_stride + column, mask=inside)
    head = column // head_dim
    row = pages_ptr + (slot // page_size) * page_stride + kind * kind_stride + (slot % page_size) * head_dim
    tl.store(row + head * head_stride + column % head_dim, values, mask=inside)
