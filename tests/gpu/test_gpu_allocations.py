"""What the driver allocates is counted, and pinned memory of a step's size is there before the first step."""

from __future__ import annotations

import pytest
import torch

from engine.device.allocations import num_allocations, reserve_pinned_memory

pytestmark = pytest.mark.gpu


def test_a_new_size_of_gpu_memory_is_counted() -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()  # what earlier tests of this process have left
    before = num_allocations("cuda")
    kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert num_allocations("cuda") > before
    del kept


def test_pinned_memory_up_to_a_megabyte_is_there() -> None:
    torch.zeros(1, device="cuda")
    reserve_pinned_memory()
    before = num_allocations("cuda")
    for size in (1, 100, 513, 4096, 70_000, 1 << 20):
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(4)]
        del held
    assert num_allocations("cuda") == before
    too_large = torch.empty((1 << 26) + 1, dtype=torch.uint8, pin_memory=True)
    assert num_allocations("cuda") > before
    del too_large
