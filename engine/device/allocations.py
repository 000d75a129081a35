"""Allocations of the CUDA driver: what the caches of torch do not have stalls the device."""

from __future__ import annotations

from typing import Final

import torch

_LARGEST_PINNED: Final = 1 << 20
"""Bytes; larger ones are rare in a step."""
_BLOCKS: Final = 4
"""Buffers of each size: for the step in flight, the next one, and copies that have not ended."""


def num_allocations(device: str) -> int:
    """How often memory of the GPU, or pinned memory of the host, was allocated or freed so far.

    0 without a GPU. Takes tens of microseconds.
    """
    if not (device.startswith("cuda") and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return 0
    gpu = torch.cuda.memory_stats_as_nested_dict(device)
    host = torch.cuda.host_memory_stats_as_nested_dict()
    return int(
        gpu["num_device_alloc"] + gpu["num_device_free"] + host["num_host_alloc"] + host["num_host_free"]
    )


def reserve_pinned_memory() -> None:
    """Have torch keep pinned memory for what steps copy. It keeps blocks by powers of two, from one byte."""
    sizes = [1 << power for power in range(_LARGEST_PINNED.bit_length())]
    blocks = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes for _ in range(_BLOCKS)]
    del blocks
