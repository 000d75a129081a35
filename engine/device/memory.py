"""How an engine divides a GPU's memory: weights, activations, graphs, and the KV pool with what is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from engine.errors import EngineError

GIB: Final = 1 << 30


def total_bytes(device: str) -> int:
    """Memory of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


class OutOfDeviceMemory(EngineError):
    """Out of device memory; the message says which flag to change."""


@contextmanager
def advising(what: str, advice: str) -> Iterator[None]:
    """Turn torch's out-of-memory error into OutOfDeviceMemory, with `what` was allocated and an advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = str(error).partition(". GPU")[0].rstrip(".")  # what follows is about torch's allocator
        raise OutOfDeviceMemory(f"there is no room for {what} ({asked}): {advice}") from error


class Probe:
    """Measures the peak memory of a step, so that the KV pool can take the rest.

    Enter it around the largest step.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak_bytes = 0
        """Peak memory of the step beyond what stays allocated after it."""

    def __enter__(self) -> Probe:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._device)
        # Memory that stays allocated, such as tables made by the sampler at first use, counts as in use.
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
