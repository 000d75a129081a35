"""The integers of GGUF's quantized tensors: a weight is code * scale + offset, exactly as if dequantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import IQ4_NL, Q4_K

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]

GROUPS: Final = {
    GGMLQuantizationType.Q4_0: 32,
    GGMLQuantizationType.Q4_1: 32,
    GGMLQuantizationType.Q5_0: 32,
    GGMLQuantizationType.Q5_1: 32,
    GGMLQuantizationType.Q8_0: 32,
    GGMLQuantizationType.Q4_K: 32,
    GGMLQuantizationType.Q5_K: 32,
    GGMLQuantizationType.Q6_K: 16,
    GGMLQuantizationType.Q2_K: 16,
    GGMLQuantizationType.Q3_K: 16,
    GGMLQuantizationType.IQ4_NL: 32,
    GGMLQuantizationType.IQ4_XS: 32,
}
"""Input features that share a scale, of the types that are integers with scales."""
WITH_OFFSETS: Final = frozenset(
    {
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_1,
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q5_K,
        GGMLQuantizationType.Q2_K,
    }
)


@dataclass(frozen=True, slots=True)
class CodedTensor:
    """A weight [rows, columns]."""

    codes: npt.NDArray[np.int8]
    """[rows, columns]"""
    scales: Floats
    """[rows, groups]"""
    offsets: Floats | None
    """[rows, groups]"""

    def in_groups_of(self, columns: int) -> CodedTensor:
        """The same, with scales repeated for narrower groups."""
        times = self.codes.shape[1] // self.scales.shape[1] // columns
        offsets = None if self.offsets is None else self.offsets.repeat(times, axis=1)
        return CodedTensor(self.codes, self.scales.repeat(times, axis=1), offsets)

    def dense(self) -> Floats:
        """The values, [rows, columns]."""
        values = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        values *= self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        return values.reshape(self.codes.shape)


def coded(data: Bytes, kind: GGMLQuantizationType) -> CodedTensor:
    """`data` [rows, bytes] as `GGUFReader` gives it, of one of the types in `GROUPS`."""
    rows = len(data)
    blocks = data.reshape(-1, GGML_QUANT_SIZES[kind][1])
    codes, scales, offsets = _READERS[kind](blocks)
    return CodedTensor(
        np.ascontiguousarray(codes.reshape(rows, -1), dtype=np.int8),
        np.ascontiguousarray(scales.reshape(rows, -1), dtype=np.float32),
        None if offsets is None else np.ascontiguousarray(offsets.reshape(rows, -1), dtype=np.float32),
    )


_Parts: TypeAlias = tuple[npt.NDArray[Any], Floats, Floats | None]


_IQ4_VALUES: Final = np.array(IQ4_NL.kvalues, np.int8)


def _halves(blocks: Bytes, at: int) -> Floats:
    """The 16-bit float at byte `at` of each block: [blocks, 1]"""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes, width: int) -> npt.NDArray[np.int16]:
    """[blocks, n] -> [blocks, 2 n]: of each `width` bytes first the low halves, then the high ones."""
    stretches = packed.reshape(len(packed), -1, 1, width)
    shifts = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
    return (stretches >> shifts & 15).reshape(len(packed), -1).astype(np.int16)


def _bits(packed: Bytes) -> npt.NDArray[np.int16]:
    """[blocks, 4] -> [blocks, 32]"""
    return np.unpackbits(packed, axis=1, bitorder="little").astype(np.int16)


def _q4_0(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 2:], 16) - 8, _halves(blocks, 0), None


def _q4_1(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 4:], 16), _halves(blocks, 0), _halves(blocks, 2)


def _q5_0(blocks: Bytes) -> _Parts:
    codes = _nibbles(blocks[:, 6:], 16) + 16 * _bits(blocks[:, 2:6])
    return codes - 16, _halves(blocks, 0), None


def _q5_1(blocks: Bytes) -> _Parts:
    codes = _nibbles(blocks[:, 8:], 16) + 16 * _bits(blocks[:, 4:8])
    return codes, _halves(blocks, 0), _halves(blocks, 2)


def _q8_0(blocks: Bytes) -> _Parts:
    return blocks[:, 2:].view(np.int8), _halves(blocks, 0), None


def _k_scales(blocks: Bytes) -> tuple[Floats, Floats]:
    scales, minima = Q4_K.get_scale_min(blocks[:, 4:16])
    return _halves(blocks, 0) * scales.astype(np.float32), -(_halves(blocks, 2) * minima.astype(np.float32))


def _q4_k(blocks: Bytes) -> _Parts:
    return _nibbles(blocks[:, 16:], 32), *_k_scales(blocks)


def _q5_k(blocks: Bytes) -> _Parts:
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    fifth = (blocks[:, None, 16:48] >> shifts & 1).reshape(len(blocks), 256).astype(np.int16)
    return _nibbles(blocks[:, 48:], 32) + 16 * fifth, *_k_scales(blocks)


def _q6_k(blocks: Bytes) -> _Parts:
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3).reshape(len(blocks), 256).astype(np.int16)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _nibbles(blocks[:, :128], 64) + 16 * high - 32, _halves(blocks, 208) * scales, None


def _q2_k(blocks: Bytes) -> _Parts:
    """Codes of 2 bits; a byte has a scale and an offset of 4 bits each."""
    scales = _halves(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    return _pairs_of_bits(blocks[:, 16:80]), scales, -(_halves(blocks, 82) * (blocks[:, :16] >> 4))


def _q3_k(blocks: Bytes) -> _Parts:
    """Codes of 2 bits and, elsewhere, one more; scales of 4 bits and, elsewhere, 2 more."""
    shifts = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)
    third = (blocks[:, None, :32] >> shifts & 1).reshape(len(blocks), 256).astype(np.int16)
    low = np.concatenate([blocks[:, 96:104] & 15, blocks[:, 96:104] >> 4], axis=1)
    high = (blocks[:, None, 104:108] >> shifts[:, :4] * 2 & 3).reshape(len(blocks), 16)
    scales = (low | high << 4).astype(np.float32) - 32
    return _pairs_of_bits(blocks[:, 32:96]) + 4 * third - 4, _halves(blocks, 108) * scales, None


def _pairs_of_bits(packed: Bytes) -> npt.NDArray[np.int16]:
    """[blocks, 64] -> [blocks, 256]: of each 32 bytes first the lowest two bits."""
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
    return (packed.reshape(-1, 2, 1, 32) >> shifts & 3).reshape(len(packed), 256).astype(np.int16)


def _iq4_nl(blocks: Bytes) -> _Parts:
    return _IQ4_VALUES[_nibbles(blocks[:, 2:], 16)], _halves(blocks, 0), None


def _iq4_xs(blocks: Bytes) -> _Parts:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = (blocks[:, 4:8, None] >> np.array([0, 4], np.uint8) & 15).reshape(len(blocks), 8)
    scales = (low | high << 4).astype(np.float32) - 32
    return _IQ4_VALUES[_nibbles(blocks[:, 8:], 16)], _halves(blocks, 0) * scales, None


_READERS: Final[Mapping[GGMLQuantizationType, Callable[[Bytes], _Parts]]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q5_1: _q5_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_K: _q5_k,
    GGMLQuantizationType.Q6_K: _q6_k,
    GGMLQuantizationType.Q2_K: _q2_k,
    GGMLQuantizationType.Q3_K: _q3_k,
    GGMLQuantizationType.IQ4_NL: _iq4_nl,
    GGMLQuantizationType.IQ4_XS: _iq4_xs,
}
