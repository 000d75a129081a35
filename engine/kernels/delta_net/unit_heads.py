"""Queries and keys of unit length, and values, each contiguous: what flashinfer's delta kernels take."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.delta_net.delta_rule import DeltaShape

_EPS: Final = tl.constexpr(1e-6)


def unit_heads(rows: torch.Tensor, shape: DeltaShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and keys `[T, key heads, dim]` and values `[T, value heads, dim]` of `rows` [T, features].

    Heads have as many features in keys as in values.
    """
    keys, values, dim = shape.key_heads, shape.value_heads, shape.key_dim
    tokens, heads = len(rows), 2 * keys + values
    out = rows.new_empty(tokens * heads * dim)
    _unit_heads[(tokens, heads)](
        rows, out, tokens, rows.stride(0), keys=keys, values=values, dim=dim, num_warps=1
    )
    q, k, v = torch.split(out, [tokens * keys * dim, tokens * keys * dim, tokens * values * dim])
    return q.view(tokens, keys, dim), k.view(tokens, keys, dim), v.view(tokens, values, dim)


@triton.jit(do_not_specialize=["tokens"])  # type: ignore[untyped-decorator]
def _unit_heads(  # type: ignore[no-untyped-def]
    rows_ptr,
    out_ptr,
    tokens,
    row_stride,
    keys: tl.constexpr,
    values: tl.constexpr,
    dim: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    feature = tl.arange(0, dim)
    given = tl.load(rows_ptr + token * row_stride + head * dim + feature)
    wide = given.to(tl.float32)
    unit = wide * tl.rsqrt(tl.sum(wide * wide, axis=0) + _EPS)
    part = tl.minimum(head // keys, 2)
    own = head - part * keys
    of_part = tl.where(part == 2, values, keys)
    place = out_ptr + (tokens.to(tl.int64) * part * keys + token * of_part + own) * dim + feature
    tl.store(place, tl.where(part == 2, wide, unit).to(out_ptr.dtype.element_ty))
