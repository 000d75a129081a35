from __future__ import annotations

import random

import numpy as np
import torch

from engine.device.small_copies import to_device
from engine.device.staging import Staging


def test_what_was_copied_stays_when_the_host_memory_is_used_again() -> None:
    staging, rng = Staging(torch.int32, torch.device("cuda")), random.Random(1)
    torch.cuda._sleep(100_000_000)  # the copies begin when the first half is full
    copies = []
    for number in range(200):
        size = rng.choice([1, 3, 1000, 30_000, 300_000])  # the last does not fit into a half
        tensor, array = staging.take(size)
        array[:] = number
        copies.append(to_device(tensor, torch.device("cuda")))
    for number, copy in enumerate(copies):
        assert bool((copy == number).all())


def test_arrays_sent_at_once_come_back_each_aligned_to_16_bytes() -> None:
    arrays = [
        np.arange(size).reshape(shape) for size, shape in [(3, (3,)), (8, (4, 2)), (0, (0,)), (5, (5,))]
    ]
    came = Staging(torch.int32, torch.device("cuda")).send(arrays)
    for array, tensor in zip(arrays, came, strict=True):
        assert np.array_equal(tensor.cpu().numpy(), array)
        assert tensor.data_ptr() % 16 == 0
