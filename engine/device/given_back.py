"""Memory that is given back to the system, and stays at its addresses."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from typing import Final

import torch

from engine.errors import EngineError

_DONT_NEED: Final = 4
"""MADV_DONTNEED of Linux: private pages without a file read as zeros from then on."""


def give_back(tensors: Iterable[torch.Tensor]) -> int:
    """Give whole pages of these tensors' storages back; returns their bytes. The values are lost: they are
    zeros, or what a mapped file has. What oneDNN has packed has no storage, and stays.

    Raises EngineError for memory of a GPU, whose addresses CUDA graphs hold.
    """
    plain = [tensor.untyped_storage() for tensor in tensors if tensor.layout is torch.strided]
    storages = {storage.data_ptr(): storage for storage in plain}
    if any(storage.device.type != "cpu" for storage in storages.values()):
        raise EngineError("memory of a GPU is not given back: captured graphs hold its addresses")
    libc, given = ctypes.CDLL(None, use_errno=True), 0
    for address, storage in storages.items():
        begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (address + storage.nbytes() - begin) // mmap.PAGESIZE * mmap.PAGESIZE
        if size <= 0:
            continue
        if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _DONT_NEED):
            raise EngineError(f"madvise failed with errno {ctypes.get_errno()}")
        given += size
    return given
