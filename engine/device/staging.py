"""Asynchronous copies of small host arrays to the device.

A copy from pageable memory blocks the host until the device has caught up; one from pinned memory does not.
torch's pinned-memory allocator keeps a block until the copies from it are done, so a tensor may be dropped as
soon as its copy is enqueued.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["send", "upload"]

Array: TypeAlias = npt.NDArray[Any]


def upload(values: Sequence[float] | Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of `values` on `device`, without blocking."""
    host = torch.as_tensor(values, dtype=dtype)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def send(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Arrays of one dtype as tensors on `device`, by a single copy.

    On a CPU the tensors share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    sizes = [array.size for array in arrays]
    host = torch.empty(sum(sizes), dtype=torch.from_numpy(arrays[0][:0]).dtype, pin_memory=True)
    np.concatenate([array.reshape(-1) for array in arrays], out=host.numpy())
    pieces = torch.split(host.to(device, non_blocking=True), sizes)
    return [piece.view(array.shape) for piece, array in zip(pieces, arrays, strict=True)]
