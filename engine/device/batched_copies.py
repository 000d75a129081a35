"""Many copies between host memory and a GPU in one call of CUDA, which torch has no name for.

A call for each page takes some 10 µs with the interpreter lock held, beside a thread that computes steps: so
scattered pages of 2 MiB moved at 28 to 35 GB/s of 52.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

log = logging.getLogger(__name__)

Addresses = npt.NDArray[np.uint64]

_CUDA_MAJOR: Final = 13
"""Before, the call has another signature, or there is none."""
_IN_STREAM_ORDER: Final = 1
"""cudaMemcpySrcAccessOrderStream."""


class _Attributes(ctypes.Structure):
    """cudaMemcpyAttributes; both locations are found by the addresses."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class BatchedCopies:
    """Raises RuntimeError where CUDA has no such call."""

    def __init__(self) -> None:
        version = torch.version.cuda or "none"
        if version.partition(".")[0] != str(_CUDA_MAJOR):
            raise RuntimeError(f"CUDA {version} has no cudaMemcpyBatchAsync as in CUDA {_CUDA_MAJOR}")
        try:
            self._call: Any = ctypes.CDLL(f"libcudart.so.{_CUDA_MAJOR}").cudaMemcpyBatchAsync
        except (OSError, AttributeError) as error:
            raise RuntimeError(str(error)) from None
        self._call.restype = ctypes.c_int
        self._attributes = _Attributes(source_access_order=_IN_STREAM_ORDER)
        self._from_the_first = ctypes.c_size_t(0)

    def enqueue(
        self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: torch.cuda.Stream
    ) -> None:
        """Copy `sizes` bytes each; no two may overlap. Raises RuntimeError."""
        if not len(sizes):
            return
        status = self._call(
            ctypes.c_void_p(targets.ctypes.data),
            ctypes.c_void_p(sources.ctypes.data),
            ctypes.c_void_p(sizes.ctypes.data),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(self._attributes),
            ctypes.byref(self._from_the_first),
            ctypes.c_size_t(1),
            ctypes.c_void_p(stream.cuda_stream),
        )
        if status:
            raise RuntimeError(f"cudaMemcpyBatchAsync failed with status {status}")


def open_batches() -> BatchedCopies | None:
    """None, with a line in the log, where copies have to be enqueued one by one."""
    try:
        return BatchedCopies()
    except RuntimeError as error:
        log.warning("copies of KV tiers are enqueued one by one: %s", error)
        return None
