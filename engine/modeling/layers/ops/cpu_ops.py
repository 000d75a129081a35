"""The small operations on CPUs: each is one pass of a compiled kernel over its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.cpu.library import CpuKernels, Function
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.ops.ops import Ops, Rotation


@dataclass(frozen=True, slots=True)
class TableRotation:
    """Table and positions of a step: the attention kernel looks up the angles itself. A `Rotation`."""

    table: Tensor
    """From `rope_table`."""
    positions: Tensor
    """[T]"""

    def turn(self, heads: Tensor) -> Tensor:
        """In torch. Attention kernels rotate queries and keys themselves and do not call this."""
        return Ops().rotation(self.table, self.positions, heads.dtype).turn(heads)


class CpuOps(Ops):
    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        self._kernels.rms_norm(x.view(-1, x.shape[-1]), weight, eps, out.view(-1, x.shape[-1]))
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        self._kernels.rms_norm(x, weight, eps, x, residual)
        return x, residual

    def gate(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if activation is Activation.SQUARED_RELU:
            return super().gate(gate_up, activation)
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        self._kernels.gate(gate_up, activation, out)
        return out

    def gelu(self, x: Tensor) -> Tensor:
        return self._each(Function.GELU, x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return self._each(Function.SIGMOID, x)

    def _each(self, function: Function, x: Tensor) -> Tensor:
        x = x.contiguous()
        out = torch.empty_like(x)
        self._kernels.each(function, x, out)
        return out

    def norm_heads(self, heads: Tensor, weight: Tensor, eps: float) -> None:
        self._kernels.rms_norm(heads, weight, eps, heads)

    def rotation(self, table: Tensor, positions: Tensor, dtype: torch.dtype) -> Rotation:
        return TableRotation(table, positions)
