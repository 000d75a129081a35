"""Reads files ahead of their use, so that a disk has more to do than what is asked for at the moment.

Tensors are mapped files: without this, each first touch of a page waits for the disk, a few hundred KiB at a
time, and the disk waits while tensors are copied. On NVMe and network disks that is a fraction of their rate.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Condition, Thread
from typing import Final

from engine.model_config.shard import WHOLE, Shard
from engine.modeling.loader.weight_files import weight_files

_BLOCK: Final = 8 << 20
_AHEAD: Final = 4 << 30
"""Bytes that are read before they are used: little of a host's memory, much for a disk's latency."""
_THREADS: Final = 8


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a file."""

    file: Path
    begin: int
    end: int


class ReadAhead:
    """Reads stretches in order into the page cache, on threads that end with the last of them or `close`."""

    def __init__(self, stretches: Sequence[Stretch], *, ahead: int = _AHEAD, share: Shard = WHOLE) -> None:
        """`share`: of the blocks, those of one of several processes that read the same files."""
        self._blocks = islice(_blocks(stretches), share.rank, None, share.size)
        self._ahead, self._share = ahead, share
        self._used = 0
        self._begun = 0
        self._closed = False
        self._failure: OSError | None = None
        self._changed = Condition()
        threads = min(_THREADS, sum(1 for _ in islice(_blocks(stretches), _THREADS)))
        self._threads = [Thread(target=self._read, name="read ahead", daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def used(self, size: int) -> None:
        """So many further bytes are used. Raises OSError if any could not be read."""
        with self._changed:
            self._used += size
            self._changed.notify_all()
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _read(self) -> None:
        buffer = bytearray(_BLOCK)
        while (block := self._next()) is not None:
            try:
                with block.file.open("rb", buffering=0) as opened:
                    os.preadv(opened.fileno(), [memoryview(buffer)[: block.end - block.begin]], block.begin)
            except OSError as failure:
                self._failure = failure
                return

    def _next(self) -> Stretch | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._begun < self._used + self._ahead)
            block = None if self._closed else next(self._blocks, None)
            if block is not None:
                self._begun += self._share.size * (block.end - block.begin)
            return block


def _blocks(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    for stretch in _joined(stretches):
        for begin in range(stretch.begin, stretch.end, _BLOCK):
            yield Stretch(stretch.file, begin, min(begin + _BLOCK, stretch.end))


def _joined(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    """Small tensors that follow each other are one stretch."""
    last: Stretch | None = None
    for stretch in stretches:
        if last is not None and (last.file, last.end) == (stretch.file, stretch.begin):
            last = Stretch(last.file, last.begin, stretch.end)
            continue
        if last is not None:
            yield last
        last = stretch
    if last is not None:
        yield last


@contextmanager
def reading_ahead(
    stretches: Sequence[Stretch], share: Shard = WHOLE, *, ahead: int = _AHEAD
) -> Iterator[ReadAhead]:
    reader = ReadAhead(stretches, ahead=ahead, share=share)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def weights_ahead(folder: Path, room: int) -> Iterator[None]:
    """Read the first `room` bytes of a model folder's weights. Raises WeightsError if it has none."""
    files = weight_files(folder)
    with reading_ahead([Stretch(file, 0, file.stat().st_size) for file in files], ahead=room):
        yield
