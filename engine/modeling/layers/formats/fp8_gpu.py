"""Products of 8-bit floats on NVIDIA GPUs (Ada, Hopper and later)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from engine.kernels.matmul import few_rows, matvec
from engine.kernels.matmul.fp8_quantize import quantize_groups, quantize_rows
from engine.kernels.matmul.grouped_matmul import ProductScaling, grouped_matmul
from engine.modeling.layers.formats.quantized import PackedMethod
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.routing import Routes

_MANY_ROWS: Final = 64
"""From which cuBLAS multiplies blocks faster than our kernel; with fewer than 16 it does not at all."""


def _of_few_rows(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, *, gated: bool = False
) -> Tensor | None:
    """Product by a kernel for few rows, which reads weights faster than others; None: it does not support
    these. `scale`: of rows or of blocks.
    """
    by_vector = matvec.suits(x, weight)
    if not by_vector and not few_rows.suits(x, weight):
        return None
    rows, scales = quantize_rows(x) if scale.dim() == 1 else quantize_groups(x)
    if not by_vector:
        return few_rows.fp8_few_rows(rows, scales, weight, scale, bias, x.dtype, gated=gated)
    if gated:
        return matvec.gated_matvec(rows, weight, (scales, scale), x.dtype)
    return matvec.matvec(rows, weight, bias, (scales, scale), x.dtype)


@dataclass(frozen=True, slots=True)
class Fp8RowsOnGpu(PackedMethod):
    weight: Tensor
    """[out, in]"""
    scale: Tensor
    """[out] float32"""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = _of_few_rows(x, self.weight, self.scale, bias)
        if product is not None:
            return product
        rows, scales = quantize_rows(x)
        product = torch._scaled_mm(
            rows,
            self.weight.t(),
            scale_a=scales.unsqueeze(1),
            scale_b=self.scale.unsqueeze(0),
            out_dtype=x.dtype,
            use_fast_accum=True,
        )
        return product if bias is None else product.add_(bias)

    def gated(self, layer: Linear, x: Tensor) -> Tensor | None:
        return _of_few_rows(x, self.weight, self.scale, None, gated=True)


@dataclass(frozen=True, slots=True)
class Fp8BlocksOnGpu(PackedMethod):
    weight: Tensor
    """[out, in]"""
    scale: Tensor
    """[out / 128, in / 128] float32"""

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        product = _of_few_rows(x, self.weight, self.scale, bias)
        if product is not None:
            return product
        use_cublas = len(x) >= _MANY_ROWS and self.scale.shape[1] % 4 == 0  # it wants scales aligned
        product = self._by_cublas(x) if use_cublas else self._by_triton(x)
        return product if bias is None else product.add_(bias)

    def gated(self, layer: Linear, x: Tensor) -> Tensor | None:
        return _of_few_rows(x, self.weight, self.scale, None, gated=True)

    def _by_cublas(self, x: Tensor) -> Tensor:
        rows, scales = quantize_groups(x, for_cublas=True)
        product = torch._scaled_mm(
            rows, self.weight.t(), scale_a=scales, scale_b=self.scale.t(), out_dtype=x.dtype
        )
        return product[: len(x)]

    def _by_triton(self, x: Tensor) -> Tensor:
        rows, scales = quantize_groups(x)
        return grouped_matmul(
            rows,
            self.weight.unsqueeze(0),
            x.dtype,
            scaling=ProductScaling.BLOCKS,
            x_scale=scales,
            weight_scale=self.scale.unsqueeze(0),
        )


@dataclass(frozen=True, slots=True)
class GroupedFp8:
    """A `GroupedProduct`."""

    weight: Tensor
    """[E, out, in]"""
    scale: Tensor
    """float32: [E, out], or [E, out / 128, in / 128]"""
    scaling: ProductScaling

    def __call__(self, x: Tensor, routes: Routes, by_token: bool) -> Tensor:
        rows, scales = quantize_rows(x) if self.scaling is ProductScaling.ROWS else quantize_groups(x)
        return grouped_matmul(
            rows,
            self.weight,
            x.dtype,
            starts=routes.starts,
            order=routes.order if by_token else None,
            per_token=routes.per_token,
            scaling=self.scaling,
            x_scale=scales,
            weight_scale=self.scale,
        )
