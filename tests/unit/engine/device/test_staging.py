from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.device.staging import Staging


@given(
    shapes=st.lists(st.one_of(st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 4), st.integers(1, 3)))),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_arrays_sent_at_once_come_back_each_aligned_to_16_bytes(
    shapes: list[tuple[int, ...]], dtype: torch.dtype
) -> None:
    arrays = [np.random.default_rng(0).integers(0, 1000, shape) for shape in [(3,), *shapes]]
    came = Staging(dtype, torch.device("cpu")).send(arrays)
    assert all(tensor.storage_offset() * tensor.itemsize % 16 == 0 for tensor in came)
    for array, tensor in zip(arrays, came, strict=True):
        assert tensor.dtype == dtype
        assert np.array_equal(tensor.numpy(), array)
