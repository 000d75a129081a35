"""The MLP of a layer."""

from __future__ import annotations

from torch import Tensor, nn

from engine.layers.linear_layer import Linear
from engine.layers.modules import GateUp

__all__ = ["GatedMLP"]


class GatedMLP(nn.Module):
    """down(silu(gate) * up): x [T, d] -> [T, d]."""

    def __init__(self, gate_up: GateUp, down: Linear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.gate_up(x))
        return output
