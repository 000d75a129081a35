"""The MLP of a layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.modules import GateUp, Up


@dataclass(frozen=True, slots=True)
class MlpNames:
    """Modules of a checkpoint's layer."""

    block: str = "mlp"
    """May be empty, with names that begin with a dot: experts are not within another module."""
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    shared_block: str = "mlp.shared_expert"
    router: str = "mlp.gate"

    @property
    def first(self) -> tuple[str, ...]:
        """Modules that the first matrix merges: gate and up, or one, which has both or no gate."""
        return tuple(dict.fromkeys((self.gate, self.up)))

    @property
    def dense(self) -> MlpNames:
        """The names of a layer's plain MLP."""
        return self if self.block in ("mlp", "mixer") else MlpNames()

    def expert(self, index: int) -> MlpNames:
        """The names of one expert, whose projections are called as those of `block`."""
        return self._moved(f"{self.block}.experts.{index}".removeprefix("."))

    @property
    def shared(self) -> MlpNames:
        """The names of the shared expert."""
        return self._moved(self.shared_block)

    def _moved(self, block: str) -> MlpNames:
        gate, up, down = (name.removeprefix(self.block) for name in (self.gate, self.up, self.down))
        return MlpNames(block, block + gate, block + up, block + down)


class GatedMLP(nn.Module):
    """down(silu(gate) * up), or without a gate down(f(up)): x [T, d] -> [T, d]."""

    def __init__(self, gate_up: GateUp | Up, down: Linear) -> None:
        super().__init__()
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.gate_up(x))
        return output
