"""Copies of the small arrays of a step between pinned host memory and a GPU.

A copy engine makes them one after another with all other copies of their direction: beside bulk copies, as of
KV tiers, each waits for those that were begun, 0.6 ms for 32 MiB, several times a step. After `use_kernels`,
they are made by a kernel, which reads or writes the host memory over the bus and waits for no copy engine.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import torch

_MOST_BYTES: Final = 1 << 20
"""Larger ones are left to the copy engine."""
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BLOCK: Final = 1024

_kernel: Any = None
"""None: all copies are left to the copy engine."""
_read: deque[tuple[torch.cuda.Event, torch.Tensor]] = deque()
"""Host memory that kernels may still access: torch's allocator does not know of them."""


def use_kernels(device: torch.device) -> None:
    """For all copies of this process from now on. Compiles the kernels."""
    global _kernel
    from engine.device.copy_kernel import copy_words

    _kernel = copy_words
    for dtype in _WORDS.values():
        to_device(torch.zeros(3, dtype=dtype, pin_memory=True), device)


def to_device(pinned: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device` of a tensor in pinned memory, without blocking."""
    there = torch.empty(pinned.shape, dtype=pinned.dtype, device=device)
    copy(there, pinned)
    return there


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Enqueue a copy of equal shape and dtype; one tensor is in pinned memory, one on the current device."""
    if _kernel is None or source.nbytes > _MOST_BYTES or torch.cuda.is_current_stream_capturing():
        target.copy_(source, non_blocking=True)
        return
    size = source.numel()
    if not size:
        return
    while _read and _read[0][0].query():  # type: ignore[no-untyped-call]
        _read.popleft()
    words = _WORDS[source.element_size()]
    source = source.contiguous()
    _kernel[(-(-size // _BLOCK),)](
        target.view(-1).view(words), source.view(-1).view(words), size, block=_BLOCK, num_warps=4
    )
    ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
    ended.record()
    _read.append((ended, source if target.is_cuda else target))
