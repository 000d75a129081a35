"""Products with weights in 4-bit floats (e2m1) with a scale per group of columns.

MXFP4 has exponents (e8m0) of 32 columns, NVFP4 scales (e4m3) of 16, and a factor for each row.

Such a product of few rows is bound by the instructions that turn codes into bfloat16. So codes are packed
for the fewest: four in 16 bits, one of each quarter of a group, three of them so that a shift and a mask
leave the bits of a bfloat16. A group is four products, one for each quarter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import triton
import triton.language as tl

from engine.kernels.matmul.expert_tiles import SWIZZLE, place_of, row_tiles, rows_of

_INTERPRETED: Final = triton.knobs.runtime.interpret
"""The interpreter has no assembly."""


class Fp4Weights(NamedTuple):
    """Matrices [E, N, K] with groups of `width` columns."""

    words: torch.Tensor
    """[E, N, K / 4] uint16: word i of a group has the codes of its columns i, i + width / 4, and so on."""
    scales: torch.Tensor
    """[E, N, K / width]: uint8, exponents biased by 127, or e4m3."""
    factor: torch.Tensor | None = None
    """[E, N] float32"""

    @property
    def width(self) -> int:
        return 4 * self.words.shape[2] // self.scales.shape[2]


def pack_fp4(codes: torch.Tensor, scales: torch.Tensor, factor: torch.Tensor | None = None) -> Fp4Weights:
    """`codes` [E, N, K] uint8: a sign, two bits of exponent, one of mantissa. The rest as in `Fp4Weights`."""
    width = codes.shape[2] // scales.shape[2]
    # Memory for one expert's words at a time: all together would take several times the weights.
    words = torch.stack([_words(of_expert, width) for of_expert in codes])
    return Fp4Weights(words, scales.contiguous(), factor)


def _words(codes: torch.Tensor, width: int) -> torch.Tensor:
    """[N, K] -> [N, K / 4]"""
    quarters = codes.view(len(codes), -1, 4, width // 4).int().unbind(-2)
    sign, size = [quarter >> 3 for quarter in quarters], [quarter & 7 for quarter in quarters]
    words = sign[0] << 15 | size[0] << 6 | sign[1] << 12 | size[1] << 3 | sign[2] << 9 | size[2]
    words |= sign[3] << 14 | size[3] >> 2 << 13 | (size[3] & 3) << 10
    return words.to(torch.uint16).view(len(codes), -1)


class _Tiling(NamedTuple):
    rows: int
    features: int
    words: int
    """Words of a weight's row that are multiplied at once."""
    warps: int
    stages: int


def fp4_matmul(
    x: torch.Tensor,
    weights: Fp4Weights,
    *,
    starts: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
    per_token: int = 1,
) -> torch.Tensor:
    """`x` [R, K] in bfloat16 times the transposed weight of each row's expert: [P, N].

    `starts`, `order` and `per_token`: as in `grouped_matmul`. Sums are in float32.
    """
    num_experts, num_features, num_groups = weights.scales.shape
    num_rows = len(x) if order is None else len(order)
    out = torch.empty((num_rows, num_features), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    tiling = _tiling(num_rows, num_experts)
    tiles = row_tiles(num_rows, num_experts, starts, tiling.rows)
    _matmul[(tiles * triton.cdiv(num_features, tiling.features),)](
        x,
        weights.words,
        weights.scales,
        weights.scales if weights.factor is None else weights.factor,
        out,
        x if starts is None else starts,
        x if order is None else order,
        num_rows,
        tiles,
        num_features=num_features,
        num_groups=num_groups,
        quarter=weights.width // 4,
        at_once=4 * tiling.words // weights.width,
        has_factor=weights.factor is not None,
        num_experts=num_experts,
        columns=triton.next_power_of_2(num_experts),
        per_token=per_token,
        grouped=starts is not None,
        gathered=order is not None,
        tile_rows=tiling.rows,
        tile_features=tiling.features,
        swizzle=SWIZZLE,
        assembly=not _INTERPRETED,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def _tiling(num_rows: int, num_experts: int) -> _Tiling:
    """The fastest that were tried on an H200 with the shapes of gpt-oss-20b, by rows that an expert gets."""
    rows = num_rows / num_experts
    if rows <= 1:
        return _Tiling(16, 64, words=64, warps=4, stages=4)
    if rows <= 8:
        return _Tiling(16, 128, words=32, warps=4, stages=4)
    if rows <= 24:
        return _Tiling(32, 128, words=64, warps=8, stages=3)
    if rows <= 64:
        return _Tiling(64, 128, words=32, warps=8, stages=3)
    return _Tiling(128, 256, words=16, warps=8, stages=3)


@triton.jit(do_not_specialize=["num_rows", "row_tiles"])  # type: ignore[untyped-decorator]
def _matmul(  # type: ignore[no-untyped-def]
    x_ptr,
    words_ptr,
    scales_ptr,
    factor_ptr,
    out_ptr,
    starts_ptr,
    order_ptr,
    num_rows,
    row_tiles,
    num_features: tl.constexpr,
    num_groups: tl.constexpr,
    quarter: tl.constexpr,
    at_once: tl.constexpr,
    has_factor: tl.constexpr,
    num_experts: tl.constexpr,
    columns: tl.constexpr,
    per_token: tl.constexpr,
    grouped: tl.constexpr,
    gathered: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_features: tl.constexpr,
    swizzle: tl.constexpr,
    assembly: tl.constexpr,
):
    """The weight is the left factor, so that its values go from registers to the tensor cores."""
    feature_tiles: tl.constexpr = (num_features + tile_features - 1) // tile_features
    row_tile, feature_tile = place_of(tl.program_id(0), row_tiles, feature_tiles, swizzle)
    chosen, first, end, source = rows_of(
        starts_ptr,
        order_ptr,
        row_tile,
        num_rows,
        num_experts,
        columns,
        per_token,
        grouped,
        gathered,
        tile_rows,
    )
    if first >= end:
        return
    row = first + tl.arange(0, tile_rows)
    inside = (row < end)[None, :]
    feature = feature_tile * tile_features + tl.arange(0, tile_features)
    present = (feature < num_features)[:, None]
    word = tl.arange(0, at_once * quarter)
    group = tl.arange(0, at_once)
    of_feature = (chosen * num_features + feature)[:, None] * num_groups
    x_column = (word // quarter * (4 * quarter) + word % quarter)[:, None]
    x_ptrs = x_ptr + source[None, :] * (num_groups * 4 * quarter) + x_column
    words_ptrs = words_ptr + of_feature * quarter + word[None, :]
    scales_ptrs = scales_ptr + of_feature + group[None, :]
    total = tl.zeros([tile_features, tile_rows], dtype=tl.float32)
    for start in range(0, num_groups, at_once):
        left = word < (num_groups - start) * quarter
        words = tl.load(words_ptrs + start * quarter, mask=present & left[None, :], other=0)
        known = present & (group < num_groups - start)[None, :]
        if scales_ptr.dtype.element_ty == tl.uint8:
            exponents = tl.load(scales_ptrs + start, mask=known, other=0)
            # 2^-64 times the scale, and 2^126 for the values.
            bits = tl.minimum(exponents.to(tl.uint16) + 62, 255) << 7
            if assembly:
                scale = bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)
            else:
                scale = (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        else:
            scale = tl.load(scales_ptrs + start, mask=known, other=0.0).to(tl.float32)
            scale *= 4611686018427387904.0  # 2^62, so that the values' 2^-126 leaves normal numbers
            if assembly:
                scale = scale.to(tl.bfloat16)
        scale = tl.broadcast_to(scale[:, :, None], (tile_features, at_once, quarter))
        scale = scale.reshape(tile_features, at_once * quarter)
        if assembly:
            first_part, second_part, third_part, fourth_part = _values(words)
        else:
            first_part, second_part, third_part, fourth_part = _interpreted_values(words)
        dtype = x_ptr.dtype.element_ty
        of_rows = x_ptrs + start * 4 * quarter
        here = left[:, None] & inside
        x = tl.load(of_rows, mask=here, other=0.0)
        total = tl.dot((first_part * scale).to(dtype), x, total)
        x = tl.load(of_rows + quarter, mask=here, other=0.0)
        total = tl.dot((second_part * scale).to(dtype), x, total)
        x = tl.load(of_rows + 2 * quarter, mask=here, other=0.0)
        total = tl.dot((third_part * scale).to(dtype), x, total)
        x = tl.load(of_rows + 3 * quarter, mask=here, other=0.0)
        total = tl.dot((fourth_part * scale).to(dtype), x, total)
    total *= 18446744073709551616.0  # 2^64
    if has_factor:
        total *= tl.load(factor_ptr + chosen * num_features + feature, mask=feature < num_features)[:, None]
    out_ptrs = out_ptr + row[None, :].to(tl.int64) * num_features + feature[:, None]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=present & inside)


@triton.jit
def _values(words):  # type: ignore[no-untyped-def]
    """The four bfloat16 of each word, times 2^-126: the sign is bit 15, the rest of a code bits 8 to 6.

    Two words at a time, which Triton's own operations do not.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 t, u;
        and.b32 $0, $4, 0x81C081C0;
        shl.b32 t, $4, 3;
        and.b32 $1, t, 0x81C081C0;
        shl.b32 t, $4, 6;
        and.b32 $2, t, 0x81C081C0;
        shl.b32 t, $4, 1;
        and.b32 t, t, 0x80008000;
        shr.b32 u, $4, 5;
        and.b32 u, u, 0x01000100;
        or.b32 t, t, u;
        shr.b32 u, $4, 4;
        and.b32 u, u, 0x00C000C0;
        or.b32 $3, t, u;
        }
        """,
        "=r,=r,=r,=r,r",
        [words],
        dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=2,
    )


@triton.jit
def _interpreted_values(words):  # type: ignore[no-untyped-def]
    """`_values` in float32, as `x` is there: the interpreter has no assembly and cannot multiply bfloat16."""
    words = words.to(tl.uint32)
    last = ((words << 1) & 0x8000) | ((words >> 5) & 0x100) | ((words >> 4) & 0xC0)
    return (
        ((words & 0x81C0) << 16).to(tl.float32, bitcast=True),
        (((words << 3) & 0x81C0) << 16).to(tl.float32, bitcast=True),
        (((words << 6) & 0x81C0) << 16).to(tl.float32, bitcast=True),
        (last << 16).to(tl.float32, bitcast=True),
    )
