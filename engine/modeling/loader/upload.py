"""Copies tensors of mapped files to a GPU, through pinned memory and on several threads.

From pageable memory the driver copies through a buffer of its own, at a thread's rate and with the page
faults of the mapped file; and columns of a matrix, as a rank may need, would first be gathered in new memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import local
from typing import Final

import torch
from torch import Tensor

_BUFFER_BYTES: Final = 8 << 20
_BUFFERS: Final = 2
"""Buffers of each thread: one is filled while the other is copied to the GPU."""
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Dtypes by size in bytes: torch copies FP8 more slowly than bytes."""


@dataclass(slots=True)
class _Buffer:
    memory: Tensor
    copied: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    """When the GPU has read it."""


class Upload:
    """`Upload()(target, source)` is `target.copy_(source)` for a target on a GPU and a source on the host.

    It returns when the source is read; the target is written in the order of the current stream.
    """

    def __init__(self) -> None:
        self._of_thread = local()

    def __call__(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.device(target.device):
            for to, block in blocks(target, source, _BUFFER_BYTES):
                buffer = self._next_buffer()
                buffer.copied.synchronize()
                words = _WORDS[block.element_size()]
                staged = buffer.memory[: block.nbytes].view(words).view(block.shape)
                staged.copy_(block.view(words))
                to.copy_(staged.to(target.device, non_blocking=True).view(block.dtype))
                buffer.copied.record()

    def _next_buffer(self) -> _Buffer:
        mine = self._of_thread
        if not hasattr(mine, "buffers"):
            mine.buffers = [
                _Buffer(torch.empty(_BUFFER_BYTES, dtype=torch.uint8, pin_memory=True))
                for _ in range(_BUFFERS)
            ]
        mine.buffers.reverse()
        buffer: _Buffer = mine.buffers[0]
        return buffer


def blocks(target: Tensor, source: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of parts of equal shape, each of at most `size` bytes."""
    if source.nbytes <= size:
        if source.nbytes:
            yield target, source
        return
    if source.dim() == 2 and source.stride(0) < source.stride(1):  # stored transposed
        target, source = target.t(), source.t()
    rows = size // (source.nbytes // len(source))
    for begin in range(0, len(source), max(1, rows)):
        end = begin + max(1, rows)
        if rows:
            yield target[begin:end], source[begin:end]
        else:
            yield from blocks(target[begin], source[begin], size)
