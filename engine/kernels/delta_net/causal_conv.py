"""The short causal convolution of delta nets, with its state: the last inputs of each request."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.delta_net.single_rows import SingleRows

_FEATURES: Final = 128


def convolve_decodes(
    mixed: torch.Tensor,
    weight: torch.Tensor,
    windows: torch.Tensor,
    decodes: SingleRows,
    out: torch.Tensor,
    kept: torch.Tensor | None = None,
) -> None:
    """SiLU of the convolution of single rows `mixed` [R, F], of any stride between them.

    `weight` is [F, 1, K], `windows` [slot, F, K - 1]: the last inputs of a request are read from its source.
    Those of a request with one row are written to its slot with the new one; of several rows, none are. `out`
    [R, F]. `kept` [R, F]: where `mixed` is copied to.
    """
    count, features = mixed.shape
    _convolve_decodes[(count, triton.cdiv(features, _FEATURES))](
        mixed,
        weight,
        windows,
        decodes.sources,
        decodes.slots,
        decodes.places,
        out,
        out if kept is None else kept,
        mixed.stride(0),
        windows.stride(0),
        keeps=kept is not None,
        features=features,
        taps=weight.shape[2],
        block=_FEATURES,
        num_warps=4,
    )


def convolve_chunks(
    mixed: torch.Tensor,
    weight: torch.Tensor,
    windows: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    firsts: torch.Tensor,
    sources: torch.Tensor,
    out: torch.Tensor,
    rows: int,
) -> None:
    """The same for N stretches of at most `rows` tokens, without writing windows.

    Stretch n has `counts[n]` rows from `starts[n]` on, of a request whose rows begin at `firsts[n]` and whose
    window before them is in slot `sources[n]`: int32 tensors.
    """
    features = mixed.shape[1]
    _convolve_chunks[(len(starts), triton.cdiv(features, _FEATURES))](
        mixed,
        weight,
        windows,
        starts,
        counts,
        firsts,
        sources,
        out,
        mixed.stride(0),
        windows.stride(0),
        features=features,
        taps=weight.shape[2],
        rows=rows,
        block=_FEATURES,
        num_warps=8,
    )


def keep_windows(
    mixed: torch.Tensor,
    windows: torch.Tensor,
    firsts: torch.Tensor,
    sources: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    *,
    layer_values: int = 0,
) -> None:
    """Write the last inputs up to two places of each of R requests, which have several rows each.

    `ends` and `slots` [R, 2] int32: rows of a request up to the place, and where its window goes, unless that
    is negative. The first may have fewer rows than a window, so it reads the one in `sources` too.

    `mixed` is [T, F], or [L, T, F] for L layers at once: `windows` are then those of the first, and those of
    the next one are `layer_values` numbers after them.
    """
    features, size = windows.shape[1:]
    layers = len(mixed) if mixed.dim() == 3 else 1
    _keep_windows[(len(firsts), triton.cdiv(features, _FEATURES), layers)](
        mixed,
        windows,
        firsts,
        sources,
        ends,
        slots,
        mixed.stride(0) if layers > 1 else 0,
        layer_values,
        mixed.stride(-2),
        windows.stride(0),
        features=features,
        size=size,
        columns=triton.next_power_of_2(size),
        block=_FEATURES,
        num_warps=4,
    )


@triton.jit  # type: ignore[untyped-decorator]
def _convolve_decodes(  # type: ignore[no-untyped-def]
    mixed_ptr,
    weight_ptr,
    windows_ptr,
    sources_ptr,
    slots_ptr,
    places_ptr,
    out_ptr,
    kept_ptr,
    mixed_stride,
    slot_stride,
    keeps: tl.constexpr,
    features: tl.constexpr,
    taps: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * block + tl.arange(0, block)
    inside = feature < features
    source = tl.load(sources_ptr + row).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    earlier = tl.load(places_ptr + row)  # rows of the same request
    before = windows_ptr + source * slot_stride + feature * (taps - 1)
    after = windows_ptr + slot * slot_stride + feature * (taps - 1)
    rows = mixed_ptr + row * mixed_stride + feature
    new = tl.load(rows, mask=inside, other=0.0)
    weight = weight_ptr + feature * taps
    total = new.to(tl.float32) * tl.load(weight + taps - 1, mask=inside, other=0.0).to(tl.float32)
    # Each value is read before the place in front of it is overwritten, by the same thread.
    for tap in tl.static_range(taps - 1):
        lacking = taps - 1 - tap - earlier  # rows that the window has, if it is above 0
        value = tl.load(before + tap + earlier, mask=inside & (source >= 0) & (lacking > 0), other=0.0)
        value += tl.load(rows - (taps - 1 - tap) * mixed_stride, mask=inside & (lacking <= 0), other=0.0)
        total += value.to(tl.float32) * tl.load(weight + tap, mask=inside, other=0.0).to(tl.float32)
        if tap > 0:
            tl.store(after + tap - 1, value, mask=inside & (slot >= 0))
    tl.store(after + taps - 2, new, mask=inside & (slot >= 0))
    result = total / (1.0 + tl.exp(-total))
    tl.store(out_ptr + row * features + feature, result.to(out_ptr.dtype.element_ty), mask=inside)
    if keeps:
        tl.store(kept_ptr + row * features + feature, new, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _convolve_chunks(  # type: ignore[no-untyped-def]
    mixed_ptr,
    weight_ptr,
    windows_ptr,
    starts_ptr,
    counts_ptr,
    firsts_ptr,
    sources_ptr,
    out_ptr,
    mixed_stride,
    slot_stride,
    features: tl.constexpr,
    taps: tl.constexpr,
    rows: tl.constexpr,
    block: tl.constexpr,
):
    stretch = tl.program_id(0)
    feature = tl.program_id(1) * block + tl.arange(0, block)
    row = tl.load(starts_ptr + stretch) + tl.arange(0, rows)
    own = (tl.arange(0, rows) < tl.load(counts_ptr + stretch))[:, None] & (feature < features)[None, :]
    first = tl.load(firsts_ptr + stretch)
    source = tl.load(sources_ptr + stretch).to(tl.int64)
    window = windows_ptr + source * slot_stride + feature * (taps - 1)
    total = tl.zeros((rows, block), dtype=tl.float32)
    for tap in tl.static_range(taps):
        at = row - (taps - 1 - tap)
        among = (at >= first)[:, None]
        values = tl.load(
            mixed_ptr + at.to(tl.int64)[:, None] * mixed_stride + feature[None, :],
            mask=own & among,
            other=0.0,
        ).to(tl.float32)
        if tap < taps - 1:
            earlier = tl.load(
                window[None, :] + (taps - 1 + at - first)[:, None],
                mask=own & (at < first)[:, None] & (source >= 0),
                other=0.0,
            )
            values += earlier.to(tl.float32)
        weight = tl.load(weight_ptr + feature * taps + tap, mask=feature < features, other=0.0)
        total += values * weight.to(tl.float32)[None, :]
    result = total / (1.0 + tl.exp(-total))
    place = out_ptr + row.to(tl.int64)[:, None] * features + feature[None, :]
    tl.store(place, result.to(out_ptr.dtype.element_ty), mask=own)


@triton.jit  # type: ignore[untyped-decorator]
def _keep_windows(  # type: ignore[no-untyped-def]
    mixed_ptr,
    windows_ptr,
    firsts_ptr,
    sources_ptr,
    ends_ptr,
    slots_ptr,
    mixed_layer_stride,
    windows_layer_stride,
    mixed_stride,
    slot_stride,
    features: tl.constexpr,
    size: tl.constexpr,
    columns: tl.constexpr,
    block: tl.constexpr,
):
    request = tl.program_id(0)
    feature = tl.program_id(1) * block + tl.arange(0, block)
    mixed_ptr += tl.program_id(2).to(tl.int64) * mixed_layer_stride
    windows_ptr += tl.program_id(2).to(tl.int64) * windows_layer_stride
    column = tl.arange(0, columns)
    own = (feature < features)[:, None] & (column < size)[None, :]
    first = tl.load(firsts_ptr + request).to(tl.int64)
    source = tl.load(sources_ptr + request).to(tl.int64)
    place = feature[:, None] * size + column[None, :]
    for which in tl.static_range(2):
        end = tl.load(ends_ptr + request * 2 + which)
        slot = tl.load(slots_ptr + request * 2 + which).to(tl.int64)
        if slot >= 0:
            at = end - size + column
            rows = mixed_ptr + (first + at)[None, :] * mixed_stride + feature[:, None]
            values = tl.load(rows, mask=own & (at >= 0)[None, :], other=0.0)
            old = windows_ptr + source * slot_stride + feature[:, None] * size + (size + at)[None, :]
            values += tl.load(old, mask=own & (at < 0)[None, :] & (source >= 0), other=0.0)
            tl.debug_barrier()  # all threads have read the window that this may overwrite
            tl.store(windows_ptr + slot * slot_stride + place, values, mask=own)
