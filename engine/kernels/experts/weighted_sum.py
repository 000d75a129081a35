"""The outputs of each token's experts, weighted and summed, as one pass."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

_BLOCK: Final = 1024


def weighted_sum(outputs: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`outputs` [P, d], of which token t has rows places[t] ([T, k]), times `weights` [T, k] float32: [T, d].

    Summed in float32, in order of k. A token whose places are negative gets zeros.
    """
    num_tokens, per_token = places.shape
    size = outputs.shape[1]
    out = torch.empty((num_tokens, size), dtype=outputs.dtype, device=outputs.device)
    if num_tokens:
        grid = (num_tokens, triton.cdiv(size, _BLOCK))
        _weighted_sum[grid](
            outputs, places, weights, out, size=size, per_token=per_token, block=_BLOCK, num_warps=4
        )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _weighted_sum(  # type: ignore[no-untyped-def]
    outputs_ptr,
    places_ptr,
    weights_ptr,
    out_ptr,
    size: tl.constexpr,
    per_token: tl.constexpr,
    block: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    total = tl.zeros([block], dtype=tl.float32)
    for j in tl.static_range(per_token):
        place = tl.load(places_ptr + token * per_token + j).to(tl.int64)
        weight = tl.load(weights_ptr + token * per_token + j)
        row = tl.load(outputs_ptr + place * size + column, mask=inside & (place >= 0), other=0.0)
        total += weight * row.to(tl.float32)
    tl.store(out_ptr + token * size + column, total.to(out_ptr.dtype.element_ty), mask=inside)
