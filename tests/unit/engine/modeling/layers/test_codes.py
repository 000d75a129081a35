"""Products of a CPU with weights in 4 and 8 bits, against those of the dequantized weights in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.kernels.cpu.library import cpu_kernels
from engine.modeling.layers.formats.fp4 import Mxfp4
from engine.modeling.layers.linear import codes
from engine.modeling.layers.linear.codes import SIGNED4, Codes, faster_code_panels
from engine.modeling.layers.linear.panels import faster_panels

pytestmark = pytest.mark.skipif(
    cpu_kernels(torch.float32) is None, reason="the kernels cannot be compiled here"
)

DTYPES = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
"""Largest error relative to the largest result: that of sums, and of rounding the result."""


@pytest.fixture(autouse=True)
def codes_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "code_panels_win", lambda dtype, four_bits: True)


def weight(features: int, depth: int, group: int, *, bits: int, offsets: bool) -> Codes:
    torch.manual_seed(0)
    lowest, end = (0, 16) if bits == 4 else (-128, 128)
    shape = features, depth // group
    return Codes(
        torch.randint(lowest, end, (features, depth), dtype=torch.int16).to(
            torch.uint8 if bits == 4 else torch.int8
        ),
        torch.rand(shape),
        torch.randn(shape) if offsets else None,
        SIGNED4 if bits == 4 else None,
    )


def product(weight: Codes, x: Tensor, bias: Tensor | None = None) -> Tensor:
    (panels,) = faster_code_panels(weight, x.dtype) or ()
    return panels.product(x, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offsets", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("depth", "group"), [(96, 16), (192, 32), (256, 128), (768, 384)])
def test_a_product_is_that_of_the_values_and_a_row_does_not_depend_on_the_others(
    depth: int, group: int, bits: int, offsets: bool, dtype: torch.dtype
) -> None:
    matrix = weight(130, depth, group, bits=bits, offsets=offsets)
    x = torch.randn(103, depth + 40).to(dtype)[:, 7 : depth + 7]
    bias = torch.randn(130).to(dtype)

    whole = product(matrix, x, bias)

    expected = x.double() @ matrix.dense(torch.float64).t() + bias.double()
    assert (whole.double() - expected).abs().max() < DTYPES[dtype] * expected.abs().max()
    for rows in (1, 2, 3, 7, 40):
        assert torch.equal(product(matrix, x[:rows], bias), whole[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_mxfp4_experts_are_multiplied_with_their_values(dtype: torch.dtype) -> None:
    stored = {
        "blocks": torch.randint(0, 256, (3, 70, 48), dtype=torch.uint8),
        "scales": torch.randint(110, 130, (3, 70, 3), dtype=torch.uint8),
    }
    panels = faster_code_panels(Mxfp4(dtype).coded(stored), dtype) or []
    dense = Mxfp4(torch.float64).dense(stored)
    x = torch.randn(5, 96).to(dtype)

    for expert, matrix in zip(dense, panels, strict=True):
        expected = x.double() @ expert.t()
        error = (matrix.product(x, None).double() - expected).abs().max()
        assert error < DTYPES[dtype] * expected.abs().max()


def test_groups_that_the_kernel_does_not_take_stay_dense() -> None:
    assert faster_code_panels(weight(8, 120, 24, bits=4, offsets=False), torch.float32) is None
    assert faster_code_panels(weight(8, 576, 192, bits=4, offsets=False), torch.float32) is None


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.undo()
    codes.code_panels_win.cache_clear()
    faster_panels(torch.zeros(64, 64))  # which is measured on its own
    yield
    codes.code_panels_win.cache_clear()


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_codes_serve_where_they_are_measured_to_be_faster(
    seconds: float, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = codes.CodePanels.product
    monkeypatch.setattr(
        codes, "fastest", lambda run: seconds if getattr(run.func, "__func__", None) is ours else 1.0
    )

    served = faster_code_panels(weight(64, 64, 32, bits=4, offsets=False), torch.float32)

    assert (served is not None) == (seconds < 1)
