"""Host memory for copies of KV pages, and the copies between it and the pool."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.device.batched_copies import Addresses, BatchedCopies, open_batches

log = logging.getLogger(__name__)

Bytes: TypeAlias = npt.NDArray[np.uint8]

_SEGMENT_BYTES: Final = 1 << 30
"""Pinned memory is allocated in pieces of this size, because torch rounds each up to a power of two."""


class HostPages:
    """`num_slots` pages of host memory, pinned if the pool is on a GPU, in which a copy is then asynchronous.

    On a CPU a copy is a memcpy. Neither holds the interpreter lock. For one thread at a time.
    """

    def __init__(self, pool: torch.Tensor, num_slots: int) -> None:
        """`pool`: contiguous, pages along its first axis. Raises MemoryError, RuntimeError."""
        self.num_slots = num_slots
        self._pool = pool.flatten(1).view(torch.uint8)
        self.page_bytes = self._pool.shape[1]
        self._per_segment = max(1, _SEGMENT_BYTES // self.page_bytes)
        sizes = [min(self._per_segment, num_slots - at) for at in range(0, num_slots, self._per_segment)]
        self._segments = [
            torch.empty((size, self.page_bytes), dtype=torch.uint8, pin_memory=pool.is_cuda) for size in sizes
        ]
        self._arrays: list[Bytes] = [segment.numpy() for segment in self._segments]
        self._stream: Any = None
        if pool.is_cuda:
            self._stream = torch.cuda.Stream(pool.device)  # type: ignore[no-untyped-call]
            self._bases = np.array([segment.data_ptr() for segment in self._segments], dtype=np.uint64)
            self._batches = self._tried(open_batches())
        else:
            self._pool_array: Bytes = self._pool.numpy()

    def slot(self, slot: int) -> Bytes:
        """The bytes of a slot, writable."""
        page: Bytes = self._arrays[slot // self._per_segment][slot % self._per_segment]
        return page

    def fetch(self, pages: Sequence[int], slots: Sequence[int]) -> torch.cuda.Event | None:
        """Copy pool pages to slots. Returns the event that ends the copies; None: they are complete."""
        return self._copy(pages, slots, down=True)

    def put(self, slots: Sequence[int], pages: Sequence[int]) -> torch.cuda.Event | None:
        """Copy slots to pool pages, the same way."""
        return self._copy(pages, slots, down=False)

    def _copy(self, pages: Sequence[int], slots: Sequence[int], *, down: bool) -> torch.cuda.Event | None:
        if self._stream is None:
            for page, slot, length in runs(pages, slots, self._per_segment):
                segment, first = self._arrays[slot // self._per_segment], slot % self._per_segment
                here, there = self._pool_array[page : page + length], segment[first : first + length]
                np.copyto(*((there, here) if down else (here, there)))
            return None
        with torch.cuda.stream(self._stream):
            if self._batches is not None:
                self._enqueue(self._batches, pages, slots, down=down)
            else:
                self._enqueue_one_by_one(pages, slots, down=down)
            ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ended.record()
        return ended

    def _tried(self, batches: BatchedCopies | None) -> BatchedCopies | None:
        """None if they do not copy the first page to the first slot as it is."""
        if batches is None:
            return None
        try:
            torch.cuda.synchronize()  # what has filled the pool
            self._enqueue(batches, [0], [0], down=True)
            self._stream.synchronize()
            if torch.equal(self._segments[0][0], self._pool[0].cpu()):
                return batches
            problem = "a page did not arrive as it was"
        except RuntimeError as error:
            problem = str(error)
        log.warning("copies of KV tiers are enqueued one by one: %s", problem)
        return None

    def _enqueue(
        self, batches: BatchedCopies, pages: Sequence[int], slots: Sequence[int], *, down: bool
    ) -> None:
        copies = np.array(list(runs(pages, slots, self._per_segment)), dtype=np.uint64)
        page, slot, length = copies.T.reshape(3, -1)
        segment, within = np.divmod(slot, self._per_segment, dtype=np.uint64)
        host: Addresses = self._bases[segment.astype(np.intp)]
        host += within * np.uint64(self.page_bytes)
        device: Addresses = page * np.uint64(self.page_bytes)
        device += np.uint64(self._pool.data_ptr())
        target, source = (host, device) if down else (device, host)
        batches.enqueue(target, source, length * np.uint64(self.page_bytes), self._stream)

    def _enqueue_one_by_one(self, pages: Sequence[int], slots: Sequence[int], *, down: bool) -> None:
        for page, slot, length in runs(pages, slots, self._per_segment):
            part, first = self._segments[slot // self._per_segment], slot % self._per_segment
            device, host = self._pool[page : page + length], part[first : first + length]
            target, source = (host, device) if down else (device, host)
            target.copy_(source, non_blocking=True)


def runs(pages: Sequence[int], slots: Sequence[int], per_segment: int) -> Iterator[tuple[int, int, int]]:
    """Page, slot and length of copies whose pages and slots are both consecutive, within a segment."""
    pairs: Iterable[tuple[int, int]] = zip(pages, slots, strict=True)
    first: tuple[int, int] | None = None
    length = 0
    for page, slot in pairs:
        if (
            first is not None
            and (page, slot) == (first[0] + length, first[1] + length)
            and slot % per_segment
        ):
            length += 1
            continue
        if first is not None:
            yield *first, length
        first, length = (page, slot), 1
    if first is not None:
        yield *first, length
