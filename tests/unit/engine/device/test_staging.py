from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.device.staging import aligned_offsets, pack, views


@given(
    shapes=st.lists(st.one_of(st.tuples(st.integers(0, 9)), st.tuples(st.integers(0, 4), st.integers(1, 3)))),
    dtype=st.sampled_from([np.int32, np.int64]),
)
def test_packed_arrays_come_back_each_aligned_to_16_bytes(shapes: list[tuple[int, ...]], dtype: type) -> None:
    arrays = [np.random.default_rng(0).integers(0, 1000, shape).astype(dtype) for shape in [(3,), *shapes]]
    offsets, size = aligned_offsets(arrays)
    host = torch.empty(size, dtype=torch.from_numpy(arrays[0]).dtype)
    pack(arrays, offsets, host.numpy())
    came = views(host, arrays, offsets)
    assert all(offset * host.itemsize % 16 == 0 for offset in offsets)
    assert len(came) == len(arrays)
    for array, tensor in zip(arrays, came, strict=True):
        assert tensor.shape == array.shape
        assert np.array_equal(tensor.numpy(), array)
