"""How an engine divides a GPU's memory: weights, activations, graphs, and the KV pool with what is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from engine.errors import EngineError

__all__ = ["OutOfDeviceMemory", "Probe", "advising"]

GIB: Final = 1 << 30


class OutOfDeviceMemory(EngineError):
    """The model does not fit the device; the message says what would."""


@contextmanager
def advising(what: str, advice: str) -> Iterator[None]:
    """Raises OutOfDeviceMemory, in words about `what` was to be allocated, where torch would with its own."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = str(error).partition(". GPU")[0].rstrip(".")  # what follows is about torch's allocator
        raise OutOfDeviceMemory(f"there is no room for {what} ({asked}): {advice}") from error


class Probe:
    """Measures what a step needs at most, so that the KV pool may have the rest.

    Enter it around the largest step that will ever run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_bytes = 0
        """What the step needed beyond what is still allocated after it."""

    def __enter__(self) -> Probe:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)
        # What stays, such as tables that the sampler makes at their first use, is in use from now on.
        kept = torch.cuda.memory_allocated(self._device)
        self.peak_bytes = torch.cuda.max_memory_allocated(self._device) - kept
        torch.cuda.empty_cache()

    def pages_that_fit(self, page_bytes: int, *, fraction: float, reserve: int) -> int:
        """Pages for the pool when it may fill the device to `fraction`, with `reserve` bytes kept for later.

        Raises OutOfDeviceMemory if there is no room for any.
        """
        free, total = torch.cuda.mem_get_info(self._device)
        used = total - free
        room = int(total * fraction) - used - self.peak_bytes - reserve
        if room < page_bytes:
            raise OutOfDeviceMemory(
                f"of {total / GIB:.1f} GiB on {self._device}, {used / GIB:.1f} are in use and a step needs "
                f"{(self.peak_bytes + reserve) / GIB:.1f} more, which leaves no room for a KV pool within "
                f"{fraction:.0%}: raise --kv-memory-fraction, lower --chunked-prefill-size, use a smaller "
                "model, or see what else runs on this GPU"
            )
        return room // page_bytes
