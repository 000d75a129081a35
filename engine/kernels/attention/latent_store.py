"""Writes a step's latents to the page pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def store_latents(rows: torch.Tensor, pages: torch.Tensor, slots: torch.Tensor) -> None:
    """Write `rows` [T, 2 * half], of any stride between tokens, to `slots` [T]: page * page_size + offset.

    `pages`: one layer of the pool, `[page, 2, 1, token, half]`.
    """
    half = pages.shape[4]
    if len(rows):
        _store[(len(rows), 2)](
            rows,
            pages,
            slots,
            rows.stride(0),
            pages.stride(0),
            pages.stride(1),
            page_size=pages.shape[3],
            half=half,
            block=triton.next_power_of_2(half),
            num_warps=1,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    rows_ptr,
    pages_ptr,
    slots_ptr,
    row_stride,
    page_stride,
    half_stride,
    page_size: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    which = tl.program_id(1)
    feature = tl.arange(0, block)
    inside = feature < half
    slot = tl.load(slots_ptr + token)
    values = tl.load(rows_ptr + token * row_stride + which * half + feature, mask=inside)
    place = pages_ptr + (slot // page_size) * page_stride + which * half_stride + (slot % page_size) * half
    tl.store(place + feature, values, mask=inside)
