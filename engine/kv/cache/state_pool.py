"""The memory that holds recurrent states: one slot a request, or a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model_config.parts.recurrent_spec import RecurrentSpec


class StatePool:
    """Views of `num_slots` slots, and of one more after them, which padding of CUDA graphs reads and writes.

    A slot is one contiguous block of memory, so that handing a state to another worker is one copy: first the
    matrices of all layers `[layer, value_head, key_dim, value_dim]` in float32, then the windows of their
    convolutions `[layer, feature, kernel - 1]` in the dtype of activations, then unused bytes.
    """

    def __init__(self, memory: Tensor, spec: RecurrentSpec, dtype: torch.dtype) -> None:
        """`memory` [num_slots + 1, bytes of a slot] uint8, zeroed. `spec`: of this rank's part."""
        self.spec = spec
        self.num_slots = len(memory) - 1
        layers = len(spec.layers)
        matrices = memory.view(torch.float32)[:, : layers * spec.matrix_values]
        shape = (len(memory), layers, spec.value_heads, spec.key_dim, spec.value_dim)
        self._matrices = matrices.view(shape).unbind(1)
        begin = 4 * layers * spec.matrix_values // dtype.itemsize
        windows = memory.view(dtype)[:, begin : begin + layers * spec.window_values]
        self._windows = windows.view(len(memory), layers, spec.mixed_size, spec.kernel - 1).unbind(1)

    @property
    def scratch_slot(self) -> int:
        return self.num_slots

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """State of one layer, by its number among layers with a state: the matrices [num_slots + 1,
        value_head, key_dim, value_dim] and the windows [num_slots + 1, feature, kernel - 1].
        """
        return self._matrices[index], self._windows[index]
