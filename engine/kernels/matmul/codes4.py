"""Codes of 4-bit integers as floating-point numbers, put together from bits: conversions take longer.

A code becomes a power of two plus the code, exactly, and so does the zero point of its group.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

INTERPRETED: Final = triton.knobs.runtime.interpret
"""The interpreter has no assembly."""
_UNPACK: Final = """
    {{
    .reg .b32 a, b;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    lop3.b32 $0, a, 0x000F000F, {offset}, 0xEA;
    lop3.b32 $1, b, 0x000F000F, {offset}, 0xEA;
    shr.b32 a, a, 4;
    shr.b32 b, b, 4;
    lop3.b32 $2, a, 0x000F000F, {offset}, 0xEA;
    lop3.b32 $3, b, 0x000F000F, {offset}, 0xEA;
    }}
    """
"""Four bytes of codes to their low and their high codes, each added to a power of two by its bits."""
_TO_BFLOAT16 = tl.constexpr(_UNPACK.format(offset="0x43004300"))
_TO_FLOAT16 = tl.constexpr(_UNPACK.format(offset="0x64006400"))


@triton.jit  # type: ignore[untyped-decorator]
def unpacked(both, zero, scale, dtype: tl.constexpr, assembly: tl.constexpr):  # type: ignore[no-untyped-def]
    """From bytes of codes, uint8 zero points and scales: low and high codes, zero points and scales.

    In `dtype`, of 16 bits, or without `assembly` in float32.
    """
    if not assembly:
        return value(both & 15), value(both >> 4), zero_value(zero), scale.to(tl.float32)
    elif dtype == tl.bfloat16:
        low, high = _values_bfloat16(both)
        return low, high, (zero.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True), scale.to(dtype)
    else:
        low, high = _values_float16(both)
        return low, high, (zero.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True), scale.to(dtype)


@triton.jit
def _values_bfloat16(both):  # type: ignore[no-untyped-def]
    """128 plus each low code, and 128 plus each high one; exact."""
    return tl.inline_asm_elementwise(
        _TO_BFLOAT16, "=r,=r,=r,=r,r", [both], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
    )


@triton.jit
def _values_float16(both):  # type: ignore[no-untyped-def]
    """1,024 plus each low code, and 1,024 plus each high one; exact."""
    return tl.inline_asm_elementwise(
        _TO_FLOAT16, "=r,=r,=r,=r,r", [both], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
    )


@triton.jit
def value(code):  # type: ignore[no-untyped-def]
    """128 plus a code, put together from bits, which takes less time than to convert an integer."""
    return ((code.to(tl.uint32) << 16) | 0x43000000).to(tl.float32, bitcast=True)


@triton.jit
def zero_value(code):  # type: ignore[no-untyped-def]
    """The `value` that stands for 0."""
    return code.to(tl.float32) + 128.0


@triton.jit  # type: ignore[untyped-decorator]
def ones(both, dtype: tl.constexpr, assembly: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 for each code, in the layout that tensor cores take the low codes in."""
    if not assembly:
        return (both & 0).to(tl.float32) + 1.0
    elif dtype == tl.bfloat16:
        return _ones_bfloat16(both)
    else:
        return _ones_float16(both)


@triton.jit
def _ones_bfloat16(both):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "mov.b32 $0, 0x3F803F80; mov.b32 $1, 0x3F803F80;",
        "=r,=r,r",
        [both],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def _ones_float16(both):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        "mov.b32 $0, 0x3C003C00; mov.b32 $1, 0x3C003C00;",
        "=r,=r,r",
        [both],
        dtype=tl.float16,
        is_pure=True,
        pack=4,
    )
