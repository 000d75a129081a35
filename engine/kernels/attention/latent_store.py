"""Writes a step's latents to the page pool."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def store_latents(rows: torch.Tensor, latents: torch.Tensor, slots: torch.Tensor) -> None:
    """Write `rows` [T, features], of any stride between tokens, to `slots` [T]: page * page_size + offset.

    `latents`: one layer of the pool, `[page, token, features]`.
    """
    features = latents.shape[2]
    if len(rows):
        _store[(len(rows),)](
            rows,
            latents,
            slots,
            rows.stride(0),
            latents.stride(0),
            page_size=latents.shape[1],
            features=features,
            block=triton.next_power_of_2(features),
            num_warps=2,
        )


@triton.jit  # type: ignore[untyped-decorator]
def _store(  # type: ignore[no-untyped-def]
    rows_ptr,
    latents_ptr,
    slots_ptr,
    row_stride,
    page_stride,
    page_size: tl.constexpr,
    features: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    feature = tl.arange(0, block)
    inside = feature < features
    slot = tl.load(slots_ptr + token)
    values = tl.load(rows_ptr + token * row_stride + feature, mask=inside)
    place = latents_ptr + (slot // page_size) * page_stride + (slot % page_size) * features
    tl.store(place + feature, values, mask=inside)
