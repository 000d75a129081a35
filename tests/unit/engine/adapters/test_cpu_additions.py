"""What adapters add on a CPU, by the kernel and by matrix products, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.adapters.additions import AdaptedLayer, AdapterRows, CpuAddition
from engine.adapters.peft_folder import LowRankPair
from engine.kernels.cpu.library import cpu_kernels
from tests.unit.engine.adapters.kernel_cases import CASES, Case, expected

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def addition(case: Case, a: Tensor, b: Tensor) -> tuple[CpuAddition, AdapterRows]:
    rows, layer = AdapterRows(torch.device("cpu")), torch.nn.Identity()
    added = CpuAddition(AdaptedLayer(rows, layer, case.pieces), case.slots, a.dtype)  # type: ignore[arg-type]
    for slot in range(case.slots):
        pairs = {
            n: LowRankPair(a[slot, n], b[slot, piece.start : piece.stop])
            for n, piece in enumerate(case.pieces)
        }
        added.fill(slot, pairs)
    return added, rows


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_row_gets_the_product_of_its_adapter(case: Case, dtype: torch.dtype, compiled: bool) -> None:
    product, x, a, b, slots = case.tensors(dtype, "cpu")
    wanted, before = expected(product, x, a, b, slots, case.pieces), product.clone()
    added, rows = addition(case, a, b)
    if not compiled:
        added._kernels = None
    rows.use(slots)
    got = added.add(lambda: product, x)
    torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    assert torch.equal(got[slots < 0], before[slots < 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_among_others_is_what_it_is_alone(dtype: torch.dtype) -> None:
    if cpu_kernels(dtype) is None:
        pytest.skip("no compiler")
    case = CASES[2]
    product, x, a, b, slots = case.tensors(dtype, "cpu")
    added, rows = addition(case, a, b)
    together = product.clone()
    rows.use(slots)
    added.add(lambda: together, x)
    for place, slot in enumerate(slots):
        if slot >= 0:
            alone = product[place : place + 1].clone()
            rows.use(slots[place : place + 1].clone())
            added.add(lambda alone=alone: alone, x[place : place + 1])  # type: ignore[misc]
            assert torch.equal(alone[0], together[place])


def test_an_adapter_of_fewer_projections_leaves_the_others_as_they_are() -> None:
    case = CASES[1]
    product, x, a, b, _ = case.tensors(torch.float32, "cpu")
    added, rows = addition(case, a, b)
    added.fill(0, {1: LowRankPair(a[0, 1, :3], b[0, case.pieces[1].start : case.pieces[1].stop, :3])})
    before, piece = product.clone(), case.pieces[1]
    rows.use(torch.zeros(case.rows, dtype=torch.int64))
    got = added.add(lambda: product, x)
    wanted = (
        before[:, piece.start : piece.stop] + x @ a[0, 1, :3].t() @ b[0, piece.start : piece.stop, :3].t()
    )
    torch.testing.assert_close(got[:, piece.start : piece.stop], wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(got[:, : piece.start], before[:, : piece.start])
    assert torch.equal(got[:, piece.stop :], before[:, piece.stop :])
