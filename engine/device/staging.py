"""Asynchronous copies of small host arrays to the device.

A copy from pageable memory blocks the host until the device has caught up; one from pinned memory does not.
torch's pinned-memory allocator keeps a block until the copies from it are done, so a tensor may be dropped as
soon as its copy is enqueued.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.device.small_copies import copy, to_device

Array: TypeAlias = npt.NDArray[Any]

_DTYPES: Final = {
    np.dtype(name).str: getattr(torch, name) for name in ("int32", "int64", "float32", "float64", "bool")
}
"""Torch dtypes by `dtype.str`: two types have 64 bits, and so two values of `dtype.char`."""
_ALIGNMENT: Final = 16
"""Bytes."""
_STAGED: Final = 1 << 20
"""Bytes of each half of a `Staging`: hundreds of steps of one request, one of a thousand."""


def upload(values: Sequence[float] | Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of `values` on `device`, without blocking."""
    host = torch.as_tensor(values, dtype=dtype)
    return host if device.type == "cpu" else to_device(host.pin_memory(), device)


class Staging:
    """Host memory for what steps copy to `device`: one allocation, whose halves are used in turn.

    An allocation for each copy takes longer than the copy. Belongs to one thread and one stream.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._halves: list[tuple[torch.Tensor, Array]] = []
        """Empty on a CPU, where arrays are not copied."""
        if device.type == "cuda":
            halves = torch.empty((2, _STAGED // dtype.itemsize), dtype=dtype, pin_memory=True)
            self._halves = [(half, half.numpy()) for half in halves]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        """For each half: when the copies from it are done."""
        self._half = self._used = 0

    def take(self, size: int) -> tuple[torch.Tensor, Array]:
        """A tensor [size], not initialised, and the same memory as an array. On a GPU the copy from it is to
        be enqueued before the next call; on a CPU the caller keeps it."""
        if not self._halves or size > len(self._halves[0][1]):
            alone = torch.empty(size, dtype=self._dtype, pin_memory=bool(self._halves))
            return alone, alone.numpy()
        if self._used + size > len(self._halves[0][1]):
            self._turn()
        begin, end = self._used, self._used + size
        self._used = end
        tensor, array = self._halves[self._half]
        return tensor[begin:end], array[begin:end]

    def send(self, arrays: Sequence[Array]) -> list[torch.Tensor]:
        """Like the function `send`, but numbers of other types are converted."""
        offsets, size = _aligned_offsets(arrays, self._dtype.itemsize)
        host, ints = self.take(size)
        _pack(arrays, offsets, ints)
        on_device = host if self._device.type == "cpu" else to_device(host, self._device)
        return _views(on_device, arrays, offsets)

    def _turn(self) -> None:
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()
        self._copied[self._half] = copied
        self._half, self._used = 1 - self._half, 0
        before = self._copied[self._half]
        if before is not None:
            before.synchronize()


def send(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Arrays of one dtype as tensors on `device`, by a single copy; each is aligned to 16 bytes.

    On a CPU the tensors share the arrays' memory.
    """
    assert len({array.dtype for array in arrays}) <= 1, "a copy has one dtype"
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    if len(arrays) == 1:
        alone = torch.empty(arrays[0].shape, dtype=_DTYPES[arrays[0].dtype.str], pin_memory=True)
        alone.numpy()[...] = arrays[0]
        return [to_device(alone, device)]
    offsets, size = _aligned_offsets(arrays, arrays[0].itemsize)
    host = torch.empty(size, dtype=_DTYPES[arrays[0].dtype.str], pin_memory=True)
    _pack(arrays, offsets, host.numpy())
    return _views(to_device(host, device), arrays, offsets)


def _aligned_offsets(arrays: Sequence[Array], itemsize: int) -> tuple[list[int], int]:
    """Where each array begins in a packed one, in elements, and the size of that.

    All begin at multiples of 16 bytes: Triton compiles a kernel once for pointers that are so aligned, and
    again for others. That took 60 to 130 ms of a serving worker whenever a step had a new combination.
    """
    step = _ALIGNMENT // itemsize
    *offsets, size = accumulate((-(-array.size // step) * step for array in arrays), initial=0)
    return offsets, size


def _pack(arrays: Sequence[Array], offsets: Sequence[int], into: Array) -> None:
    """Elements between the arrays are left as they are."""
    for array, offset in zip(arrays, offsets, strict=True):
        into[offset : offset + array.size] = array.reshape(-1)


def _views(packed: torch.Tensor, arrays: Sequence[Array], offsets: Sequence[int]) -> list[torch.Tensor]:
    """The parts of `packed`, in the shapes of `arrays`. One operation, and one more for each with several
    dimensions or with padding after it."""
    ends = [*offsets[1:], len(packed)]
    parts = torch.split(packed, [end - offset for offset, end in zip(offsets, ends, strict=True)])
    return [_shaped(part, array) for part, array in zip(parts, arrays, strict=True)]


def _shaped(part: torch.Tensor, array: Array) -> torch.Tensor:
    if len(part) != array.size:
        part = part[: array.size]
    return part if array.ndim == 1 else part.view(array.shape)


class Readback:
    """Copies enqueued right after the kernels that produce the data: later work does not delay them."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        """With no tensors, `wait` still waits for the work enqueued before."""
        on_gpu = device.type == "cuda"
        self._done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._host = [_to_pinned(tensor) for tensor in tensors] if on_gpu else list(tensors)
        if self._done is not None:
            self._done.record()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[torch.Tensor]:
        """The tensors, in host memory. Returns at once on a CPU."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    # A copy to pageable memory would block until the device is done.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy(host, tensor)
    return host
