"""How a layer's weight is packed: by the faster of our kernel and oneDNN, with the same product."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.kernels.cpu.library import cpu_kernels
from engine.modeling.layers.linear import panels
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.layers.linear.onednn import packed
from engine.modeling.layers.linear.panels import faster


@pytest.fixture
def unmeasured() -> Iterator[None]:
    """No choice was made before, and none is kept."""
    panels.panels_win.cache_clear()
    yield
    panels.panels_win.cache_clear()


def packed_layer(dtype: torch.dtype, bias: bool = True) -> tuple[Linear, Linear]:
    """A layer as it was loaded, and its packed copy."""
    torch.manual_seed(0)
    plain, layer = Linear(96, 130, bias=bias).to(dtype), Linear(96, 130, bias=bias).to(dtype)
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter)
    layer.load_state_dict(plain.state_dict())
    layer.pack()
    return plain, layer


def measure(monkeypatch: pytest.MonkeyPatch, *, ours: float, onednn: float) -> None:
    """Seconds that each product seems to take on this machine."""
    monkeypatch.setattr(
        panels, "fastest", lambda product: onednn if product.func is panels.onednn_product else ours
    )


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ours", [0.5, 2.0], ids=["our kernel is faster", "oneDNN is faster"])
def test_a_layer_computes_the_same_before_and_after_packing(
    ours: float,
    dtype: torch.dtype,
    bias: bool,
    rows: int,
    unmeasured: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measure(monkeypatch, ours=ours, onednn=1.0)
    plain, layer = packed_layer(dtype, bias)
    x = torch.randn(rows, 200).to(dtype)[:, 50:146]

    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(layer(x), plain(x), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_machine_whose_onednn_is_faster_uses_it(
    dtype: torch.dtype, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with AMX, whose layout of bfloat16 is oneDNN's own."""
    measure(monkeypatch, ours=4.0, onednn=1.0)

    _, layer = packed_layer(dtype)

    assert layer.weight.is_mkldnn == packed(torch.ones(130, 96, dtype=dtype)).is_mkldnn


@pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="there is no compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_machine_without_onednn_for_a_dtype_uses_our_kernel(
    dtype: torch.dtype, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with AVX2, where oneDNN multiplies no bfloat16."""
    monkeypatch.setattr(panels, "packed", lambda weight: weight)

    _, layer = packed_layer(dtype)

    assert layer.weight.shape[0] == 3  # panels of 64 rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_a_compiler_onednn_or_torch_multiplies(
    dtype: torch.dtype, unmeasured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panels, "cpu_kernels", lambda dtype: None)
    plain, layer = packed_layer(dtype)
    x = torch.randn(3, 96).to(dtype)

    torch.testing.assert_close(layer(x), plain(x), atol=0.1, rtol=0.1)
    assert layer.weight.shape == (130, 96)


def test_the_faster_product_is_that_with_the_smaller_geometric_mean() -> None:
    assert faster([1, 1, 1], [1, 1, 1.01])
    assert faster([3, 1, 10], [1, 4, 10])
    assert not faster([1, 1, 4], [3, 1, 1])
    assert not faster([1], [1])
