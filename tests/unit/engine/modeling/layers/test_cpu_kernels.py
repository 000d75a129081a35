"""Compiled kernels against torch's operations, and how they come to be compiled."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import full_group
from engine.kernels.cpu import build, library
from engine.kernels.cpu.build import BuildError, built_library
from engine.kernels.cpu.library import cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import TorchAttention, UnsupportedBackend, attention_for
from engine.model_config.parts.layer_options import Activation
from engine.modeling.layers.linear.panels import panels_of
from engine.modeling.layers.ops.cpu_ops import CpuOps
from engine.modeling.layers.ops.ops import Ops
from engine.modeling.layers.ops.select import ops_for
from tests.unit.engine.dense_attention import plain

compiled = pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="there is no compiler")

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

dtypes = st.sampled_from([torch.float32, torch.bfloat16])
rows = st.integers(1, 70)
seeds = st.integers(0, 1000)


def assert_close(result: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result.double(), expected.double(), atol=tolerance, rtol=tolerance)


def ops_of(dtype: torch.dtype) -> CpuOps:
    kernels = cpu_kernels(dtype)
    assert kernels is not None
    return CpuOps(kernels)


@compiled
@given(dtype=dtypes, rows=rows, size=st.integers(1, 600), seed=seeds)
def test_norms_and_activations_are_those_of_torch(
    dtype: torch.dtype, rows: int, size: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, residual, gate_up = (
        torch.randn(rows, columns, generator=generator).to(dtype) for columns in (size, size, 2 * size)
    )
    weight = torch.randn(size, generator=generator).to(dtype)
    ops, oracle = ops_of(dtype), Ops()

    expected, total = oracle.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    normed, summed = ops.add_rms_norm(x.clone(), residual.clone(), weight, 1e-5)
    assert_close(normed, expected)
    assert_close(summed, total)
    assert_close(ops.rms_norm(x, weight, 1e-5), oracle.rms_norm(x, weight, 1e-5))
    assert_close(ops.sigmoid(x * 8), oracle.sigmoid(x * 8))
    assert_close(ops.sigmoid(x.float() * 8), oracle.sigmoid(x.float() * 8))
    assert_close(ops.gelu(x * 8), oracle.gelu(x * 8))
    assert torch.equal(ops.sigmoid(x)[-1:], ops.sigmoid(x[-1:]))
    for activation in Activation:
        assert_close(ops.gate(gate_up * 8, activation), oracle.gate((gate_up * 8).clone(), activation))


@compiled
@given(dtype=dtypes, rows=rows, heads=st.integers(1, 5), dim=st.sampled_from([8, 64, 80, 128]), seed=seeds)
def test_heads_are_normalised_where_they_lie(
    dtype: torch.dtype, rows: int, heads: int, dim: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(rows, heads + 2, dim, generator=generator).to(dtype)
    weight = torch.randn(dim, generator=generator).to(dtype)
    expected = qkv.clone()
    Ops().norm_heads(expected[:, 1 : heads + 1], weight, 1e-6)

    ops_of(dtype).norm_heads(qkv[:, 1 : heads + 1], weight, 1e-6)

    assert_close(qkv, expected)


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_are_not_finite_stay_so(dtype: torch.dtype) -> None:
    ops = ops_of(dtype)
    x = torch.zeros(4, 40, dtype=dtype)
    x[1, 3], x[2, 3], x[3, 3] = torch.nan, torch.inf, -200

    weight = torch.ones(40, dtype=dtype)

    for activation in Activation:
        expected = Ops().gate(x.clone(), activation)
        torch.testing.assert_close(ops.gate(x, activation), expected, equal_nan=True)
    normed = ops.rms_norm(x, weight, 1e-5).isfinite()
    assert torch.equal(normed, Ops().rms_norm(x, weight, 1e-5).isfinite())


@compiled
@given(
    dtype=dtypes,
    rows=st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 50, 97, 200]),
    pairs=st.sampled_from([1, 5, 16, 48, 288]),
    outer=st.integers(1, 200),
    biased=st.booleans(),
    strided=st.booleans(),
    threads=st.sampled_from([1, 2]),
    seed=seeds,
)
def test_panels_multiply_like_the_weight(
    dtype: torch.dtype,
    rows: int,
    pairs: int,
    outer: int,
    biased: bool,
    strided: bool,
    threads: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inner = 2 * pairs
    x = torch.randn(rows, inner + 8 * strided, generator=generator).to(dtype)[:, 8 * strided :]
    weight = torch.randn(outer, inner, generator=generator).to(dtype)
    bias = torch.randn(outer, generator=generator).to(dtype) if biased else None
    panels = panels_of(weight)
    assert panels is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)

    result = panels.product(x, bias)

    torch.set_num_threads(before)
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance / 5)


@compiled
@given(rows=st.integers(1, 200), inner=st.integers(1, 600), seed=seeds)
def test_a_row_in_float32_is_multiplied_the_same_whatever_rows_are_beside_it(
    rows: int, inner: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inner, generator=generator)
    panels = panels_of(torch.randn(70, inner, generator=generator))
    assert panels is not None

    together = panels.product(x, None)

    assert torch.equal(together, torch.cat([panels.product(row, None) for row in x.split(1)]))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((64, 33), torch.bfloat16), ((64, 64), torch.float16), ((64, 64), torch.float64)]
)
def test_what_the_kernel_does_not_multiply_has_no_panels(shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert panels_of(torch.ones(shape, dtype=dtype)) is None


def test_without_a_compiler_the_error_names_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(BuildError, match="there is no compiler"):
        built_library(tmp_path)


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    with pytest.raises(BuildError, match="status 3: no such option"):
        built_library(tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_processes_that_start_together_compile_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, calls = tmp_path / "g++", tmp_path / "calls"
    compiler.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nwhile [ $# -gt 1 ]; do shift; done\nsleep 0.1\ntouch "$1"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = multiprocessing.get_context("fork")

    processes = [context.Process(target=built_library, args=(tmp_path / "cache",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 4
    assert len(calls.read_text().splitlines()) == 2  # to compile, and to link
    assert built_library(tmp_path / "cache").is_file()


def test_another_processor_gets_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Path("/bin/sh")
    here = build._digest(compiler)
    monkeypatch.setattr(build, "_processor", lambda: "another")

    assert build._digest(compiler) != here


def test_another_target_gets_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Path("/bin/sh")
    here = build._digest(compiler)
    monkeypatch.setenv("BATON_CPU_TARGET", "haswell")

    assert build._digest(compiler) != here


def test_without_a_library_torch_serves(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> Path:
        raise BuildError("there is no compiler")

    monkeypatch.setattr(library, "built_library", failing)
    library._library.cache_clear()
    pool = KVPool(
        num_pages=1,
        groups=full_group(1),
        num_kv_heads=1,
        head_dim=8,
        page_size=4,
        dtype=torch.float32,
        device="cpu",
    )

    with caplog.at_level("INFO"):
        attention = attention_for("auto", pool, 1, plain(1, 8), max_requests=1)
        ops = ops_for(torch.device("cpu"), torch.float32)
    with pytest.raises(UnsupportedBackend, match="no compiled kernels"):
        attention_for("cpu", pool, 1, plain(1, 8), max_requests=1)
    library._library.cache_clear()

    assert isinstance(attention, TorchAttention)
    assert type(ops) is Ops
    assert caplog.messages == [
        "no compiled CPU kernels, plain torch serves instead, slower: there is no compiler"
    ]
