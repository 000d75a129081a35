"""Products of 4-bit integers with 16-bit activations on NVIDIA GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import torch
from torch import Tensor

from engine.kernels.matmul.packed4 import Packed4, expand, packed4_matmul
from engine.kernels.matmul.packed4_few_rows import packed4_few_rows, suits
from engine.modeling.layers.formats.quantized import PackedMethod
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.routing import Routes

_WIDEST: Final = 128
"""Columns of the widest group that the kernels multiply."""
_MANY_ROWS: Final = 257
"""Rows from which expanding the weights for cuBLAS is faster than expanding them in a product's tiles. On an
H200 a layer of an 8B model takes 0.18 ms for 64 rows in tiles and 0.32 the other way; for 256 rows 0.41 and
0.44."""
_EXPANDED_BYTES: Final = 64 << 20
"""Size of the buffer that all layers expand their weights into, part by part."""


def interleaved(codes: Tensor, zero: Tensor, scale: Tensor) -> Packed4:
    """Codes [..., out, in], and zeros and scales [..., out, groups], in the kernels' layout.

    Wider groups than 128 become several with the same scale.
    """
    groups = scale.shape[-1]
    parts = max(1, codes.shape[-1] // groups // _WIDEST)
    scale, zero = (of_groups.repeat_interleave(parts, -1) for of_groups in (scale, zero))
    halves = codes.reshape(*codes.shape[:-1], groups * parts, 2, -1)
    packed = (halves[..., 0, :] | halves[..., 1, :] << 4).flatten(-2)
    return Packed4(_stacked(packed), _stacked(_narrowed(scale)), _stacked(zero.to(torch.uint8)))


def _stacked(tensor: Tensor) -> Tensor:
    return (tensor if tensor.dim() == 3 else tensor.unsqueeze(0)).contiguous()


def _narrowed(scale: Tensor) -> Tensor:
    """In 16 bits, if none is rounded: 32 bits per group of 32 take a quarter of the bytes of the values."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal((narrow := scale.to(dtype)).to(scale.dtype), scale):
            return narrow
    return scale.to(torch.float32)


@cache
def _expanded(device: torch.device, dtype: torch.dtype) -> Tensor:
    """At one address for graphs; used by one product at a time, in the order of the stream."""
    return torch.empty(_EXPANDED_BYTES // dtype.itemsize, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Packed4OnGpu(PackedMethod):
    packed: Packed4
    """Weights of one matrix."""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        if suits(x, self.packed):
            return packed4_few_rows(x, self.packed, bias)
        product = self.by_cublas(x) if len(x) >= _MANY_ROWS else packed4_matmul(x, self.packed)
        return product if bias is None else product.add_(bias)

    def by_cublas(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]: some output features after the others, whose weights are expanded."""
        _, num_features, half = self.packed.codes.shape
        memory = _expanded(x.device, x.dtype)
        together = len(memory) // (2 * half)
        out = x.new_empty(len(x), num_features)
        for start in range(0, num_features, together):
            part = slice(start, min(start + together, num_features))
            weight = memory[: (part.stop - start) * 2 * half].view(-1, 2 * half)
            expand(self.packed, part, weight)
            torch.mm(x, weight.t(), out=out[:, part])
        return out


@dataclass(frozen=True, slots=True)
class GroupedPacked4:
    """A `GroupedProduct`."""

    packed: Packed4

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        return packed4_matmul(
            x,
            self.packed,
            starts=routes.starts,
            order=routes.order if by_token else None,
            per_token=routes.per_token,
        )
