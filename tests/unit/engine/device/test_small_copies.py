"""Small copies between host and device. Kernels on a GPU are in tests/gpu."""

from __future__ import annotations

import os

import pytest
import torch

from engine.device import small_copies

WORDS = [torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", WORDS)
def test_without_kernels_a_copy_is_that_of_torch(dtype: torch.dtype) -> None:
    values = torch.arange(5, dtype=dtype)
    there = small_copies.to_device(values, torch.device("cpu"))
    assert torch.equal(there, values)
    assert there.data_ptr() != values.data_ptr()


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.parametrize("size", [1, 1023, 1024, 1025])
def test_the_kernel_copies_these_words_and_no_others(dtype: torch.dtype, size: int) -> None:
    from engine.device.copy_kernel import copy_words

    values, target = torch.randint(0, 100, (size,), dtype=dtype), torch.zeros(size + 2, dtype=dtype)
    copy_words[(-(-size // 1024),)](target[:size], values, size, block=1024)
    assert torch.equal(target[:size], values)
    assert not target[size:].any()
