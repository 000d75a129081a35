"""Copies a layer's keys and values out of the page pool into contiguous rows, one kernel per layer."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def gather_kv(pages: torch.Tensor, sources: torch.Tensor, fills: torch.Tensor, out: torch.Tensor) -> None:
    """Put page `sources[i]` of one layer into rows [i * page_size, (i + 1) * page_size) of `out`.

    `pages` is `[page, 2, kv_head, page_size, head_dim]`, whose last two sizes are powers of two; `out` is
    `[2, rows, kv_head, head_dim]`, contiguous. Only the first `fills[i]` tokens of a page are copied; the
    rest is zeroed, since an earlier owner may have left NaN there. `sources` and `fills` are int32. Pages of
    8-bit floats are converted to the dtype of `out`.
    """
    num_heads, page_size, head_dim = pages.shape[2:]
    _gather_kv[(len(sources), 2 * num_heads)](
        pages,
        sources,
        fills,
        out,
        pages.stride(0),
        pages.stride(1),
        pages.stride(2),
        out.stride(0),
        num_heads=num_heads,
        page_size=page_size,
        head_dim=head_dim,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _gather_kv(  # type: ignore[no-untyped-def]
    pages_ptr,
    sources_ptr,
    fills_ptr,
    out_ptr,
    page_stride,
    kind_stride,
    head_stride,
    out_kind_stride,
    num_heads: tl.constexpr,
    page_size: tl.constexpr,
    head_dim: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    kind = (tl.program_id(1) // num_heads).to(tl.int64)
    head = tl.program_id(1) % num_heads
    page = tl.load(sources_ptr + index).to(tl.int64)
    fill = tl.load(fills_ptr + index)
    token = tl.arange(0, page_size)[:, None]
    feature = tl.arange(0, head_dim)[None, :]
    source = pages_ptr + page * page_stride + kind * kind_stride + head * head_stride
    values = tl.load(source + token * head_dim + feature, mask=token < fill, other=0.0)
    row = index * page_size + token
    place = out_ptr + kind * out_kind_stride + (row * num_heads + head) * head_dim + feature
    tl.store(place, values.to(out_ptr.dtype.element_ty))
