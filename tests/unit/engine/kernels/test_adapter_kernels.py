"""The kernels for adapters, interpreted, against the same in plain torch."""

from __future__ import annotations

import os

import pytest
import torch

from tests.unit.engine.adapters.kernel_cases import CASES, Case, add_to_few, expected

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton, and TRITON_INTERPRET=1"
)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_row_gets_the_product_of_its_adapter(case: Case, few: bool) -> None:
    from engine.kernels.matmul.adapters import add_low_rank

    product, *rest = case.tensors(torch.float32, "cpu")
    before, slots = product.clone(), rest[-1]
    wanted = expected(product, *rest, case.pieces)
    add = add_to_few if few else add_low_rank
    add(product, *rest, case.pieces)
    torch.testing.assert_close(product.double(), wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(product[slots < 0], before[slots < 0])
