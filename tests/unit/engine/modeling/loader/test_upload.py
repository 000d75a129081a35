"""Tensors are copied to a GPU in blocks that fit into a buffer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.modeling.loader.upload import blocks

WHOLE = torch.arange(24_000).view(300, 80)


@pytest.mark.parametrize(
    "source",
    [
        WHOLE,
        WHOLE[:, 35:],
        WHOLE[::3],
        WHOLE.t(),
        WHOLE.t()[10:, 7:],
        WHOLE.view(3, 100, 80),
        WHOLE.view(1, 1, -1),
        WHOLE[0, 0],
        WHOLE[:0],
    ],
    ids=["matrix", "columns", "rows", "transposed", "part", "stack", "long row", "number", "nothing"],
)
def test_blocks_cover_the_tensor_and_none_is_larger_than_a_buffer(source: Tensor) -> None:
    target = torch.full(source.shape, -1)

    for to, block in blocks(target, source, 4096):
        assert block.nbytes <= 4096
        to.copy_(block)

    assert torch.equal(target, source)


def test_a_transposed_matrix_is_read_along_its_rows() -> None:
    target = torch.empty(80, 300, dtype=torch.int64)

    for _, block in blocks(target, WHOLE.t(), 4096):
        assert block.is_contiguous()


def test_a_small_tensor_is_one_block() -> None:
    assert len(list(blocks(torch.empty(80), torch.empty(80), 4096))) == 1
