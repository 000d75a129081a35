"""Weights on NVIDIA GPUs whose products of a row are the same alone and among others."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from engine.errors import EngineError
from engine.kernels.matmul.uniform_matmul import (
    MANY_FEATURES,
    Workspace,
    rows_of_tilings,
    splits_of,
    uniform_matmul,
    workspace_of,
)

_HOPPER = (9, 0)
_ALIGNED = 8
"""Numbers of 16 bits in 16 bytes."""
_workspaces: WeakValueDictionary[torch.device, Workspace] = WeakValueDictionary()
"""The largest so far of each device. Weights keep the one that graphs were captured with."""

_compiled: set[Hashable] = set()


class UniformMatrix:
    """A weight [N, K] of 16-bit floats, as it is."""

    def __init__(self, weight: Tensor, results: torch.dtype) -> None:
        """`results`: dtype of the products. Raises EngineError if there are no kernels for the weight."""
        if (why := _obstacle(weight)) is not None:
            raise EngineError(f"--reproducible: {why}")
        self.memory = weight.contiguous()
        self._results = results
        features, columns = weight.shape
        self._splits = splits_of(features, columns)
        self._workspace = _workspace(weight.device, *workspace_of(features, self._splits))
        self._descriptors: dict[tuple[int, int], TensorDescriptor] = {}

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """See `PackedMatrix`. The first of a kind also compiles the kernels of other numbers of rows."""
        key = self._key(bias)
        if key not in _compiled:
            _compiled.add(key)
            for rows in rows_of_tilings(len(self.memory), self._splits):
                self._product(x.new_zeros(rows, x.shape[1]), bias)
        return self._product(x, bias)

    def _key(self, bias: Tensor | None) -> Hashable:
        """What kernels are specialised for, beside the number of rows."""
        features, columns = self.memory.shape
        tilings = features > MANY_FEATURES, self._splits
        return self.memory.dtype, self._results, bias is None, tilings, features % 16, columns % 128

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.empty((len(x), len(self.memory)), dtype=self._results, device=x.device)
        if x.stride(1) != 1 or x.stride(0) % _ALIGNED or x.data_ptr() % 16:
            x = x.contiguous()
        uniform_matmul(x, self.memory, self._tiles, bias, out, self._workspace, self._splits)
        return out

    def _tiles(self, features: int, depth: int) -> TensorDescriptor:
        found = self._descriptors.get((features, depth))
        if found is None:
            found = TensorDescriptor.from_tensor(self.memory, [features, depth])
            self._descriptors[features, depth] = found
        return found


def _obstacle(weight: Tensor) -> str | None:
    if torch.cuda.get_device_capability(weight.device) != _HOPPER:
        return "its kernels are made for GPUs of compute capability 9.0 (H100, H200); use --device cpu"
    if weight.dtype not in (torch.bfloat16, torch.float16):
        return f"on a GPU it multiplies weights of 16 bits, not {weight.dtype}; use --dtype bfloat16"
    if weight.shape[1] % _ALIGNED:
        return f"on a GPU it multiplies rows of multiples of {_ALIGNED} numbers, not {weight.shape[1]}"
    return None


def _workspace(device: torch.device, floats: int, tiles: int) -> Workspace:
    found = _workspaces.get(device)
    if found is None or len(found.sums) < floats or len(found.arrivals) < tiles:
        have = (1, 1) if found is None else (len(found.sums), len(found.arrivals))
        found = _workspaces[device] = Workspace(max(floats, have[0]), max(tiles, have[1]), device)
    return found
