"""Attention of bfloat16 prompts by everything that multiplies it; AMX is emulated everywhere."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from common.kv_groups import full_group
from engine.core.batch.batch import scratch_batch
from engine.core.batch.block_tables import BlockTables
from engine.core.largest_step import TokenSpan
from engine.kernels.cpu.build import compile_library
from engine.kernels.cpu.library import CpuKernels, Products, attention_products, cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.cpu_backend import CpuAttention
from tests.unit.engine.dense_attention import attend, plain
from tests.unit.engine.mixers.attention.test_cpu_attention import Shape, check, shapes

pytestmark = pytest.mark.skipif(cpu_kernels(torch.float32) is None, reason="there is no compiler")

EMULATED = "AMX, emulated"
KINDS = [
    *(products.name for products in attention_products()),
    pytest.param(EMULATED, marks=pytest.mark.thorough),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if platform.machine() != "x86_64":
        pytest.skip("GCC has AMX's intrinsics for x86 only")
    library = tmp_path_factory.mktemp("kernels") / "emulated.so"
    header = Path(__file__).with_name("emulated_amx.h")
    compile_library(library, "-D__AMX_BF16__", "-include", header)
    return ctypes.CDLL(str(library))


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    if request.param == EMULATED:
        return CpuKernels(request.getfixturevalue("emulated"), torch.bfloat16, Products.AMX)
    kernels = cpu_kernels(torch.bfloat16)
    assert kernels is not None
    kernels.products = Products[request.param]
    return kernels


def attended(kernels: CpuKernels, shape: Shape, qkv: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    """What a prompt attends to that is computed in chunks of `cuts` tokens."""
    count = -(-len(qkv) // shape.page_size)
    pool = KVPool(
        num_pages=count,
        groups=full_group(1),
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        page_size=shape.page_size,
        dtype=shape.dtype,
        device="cpu",
    )
    pool.tensor.fill_(torch.nan)
    attention = CpuAttention(pool, shape.heads, plain(1, shape.head_dim), kernels)
    results, end = [], 0
    for tokens in cuts:
        batch = scratch_batch([TokenSpan(end, tokens)], 0, shape.page_size, torch.device("cpu"))
        tables = BlockTables.of([list(range(-(-(end + tokens) // shape.page_size)))])
        group = replace(batch.groups[0], slot_mapping=batch.positions, block_tables=tables)
        attention.prepare(replace(batch, groups=[group]))
        results.append(attention.forward(0, qkv[end : end + tokens].clone(), None))
        end += tokens
    return torch.cat(results)


def prompt(shape: Shape, tokens: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = (tokens, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    return torch.randn(size, generator=generator).to(shape.dtype)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=shapes.filter(lambda shape: shape.dtype == torch.bfloat16),
    requests=st.lists(
        st.tuples(st.sampled_from([0, 1, 63, 64, 300]), st.sampled_from([1, 2, 3, 33, 97])),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 1000),
    window=st.sampled_from([None, 1, 5, 64, 257]),
    soft_cap=st.sampled_from([None, 1.5, 30.0]),
    sinks=st.booleans(),
)
def test_any_batch_attends_as_written_out(
    kernels: CpuKernels,
    shape: Shape,
    requests: list[tuple[int, int]],
    seed: int,
    window: int | None,
    soft_cap: float | None,
    sinks: bool,
) -> None:
    check(shape, requests, seed=seed, window=window, soft_cap=soft_cap, sinks=sinks, kernels=kernels)


def test_parts_of_long_contexts_are_merged(kernels: CpuKernels) -> None:
    shape = Shape(page_size=16, kv_heads=1, group=3, head_dim=64, dtype=torch.bfloat16)

    check(shape, [(5000, 40)], kernels=kernels)
    check(shape, [(5000, 40)], window=1500, sinks=True, kernels=kernels)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_errors_are_not_larger_than_those_of_torch(kernels: CpuKernels, head_dim: int) -> None:
    shape = Shape(page_size=16, kv_heads=2, group=3, head_dim=head_dim, dtype=torch.bfloat16)
    qkv = prompt(shape, 300)

    result = attended(kernels, shape, qkv, [300])

    q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    q1, k1, v1 = (part.transpose(0, 1)[None] for part in (q, k, v))
    theirs = scaled_dot_product_attention(q1, k1, v1, is_causal=True, enable_gqa=True)
    exact = attend(q.double(), k.double(), v.double(), plain(1, head_dim)[0])
    error, of_torch = (
        (out.double() - exact).square().mean().sqrt() for out in (result, theirs[0].transpose(0, 1))
    )
    assert error < 1.05 * of_torch


def test_a_prompt_in_chunks_attends_to_the_same_bits(kernels: CpuKernels) -> None:
    shape = Shape(page_size=16, kv_heads=2, group=3, head_dim=64, dtype=torch.bfloat16)
    qkv = prompt(shape, 299)
    whole = attended(kernels, shape, qkv, [299])

    for cuts in ([64, 235], [2, 3, 294], [97, 100, 102], [33] * 9 + [2]):
        assert torch.equal(attended(kernels, shape, qkv, cuts), whole)


def test_what_is_not_finite_stays_with_its_rows_and_those_after_them(kernels: CpuKernels) -> None:
    shape = Shape(page_size=16, kv_heads=2, group=3, head_dim=64, dtype=torch.bfloat16)
    qkv = prompt(shape, 90)
    qkv[70, :, 0] = torch.nan

    result = attended(kernels, shape, qkv, [90])

    assert result[:64].isfinite().all()  # values up to the 64th token are multiplied on their own
    assert result[70:].isnan().any(2).all()


def test_large_scores_neither_overflow_nor_vanish(kernels: CpuKernels) -> None:
    shape = Shape(page_size=16, kv_heads=1, group=2, head_dim=64, dtype=torch.bfloat16)
    qkv = prompt(shape, 150)
    qkv[:, :-1] *= 100

    result = attended(kernels, shape, qkv, [150])

    q, k, v = qkv.double().split([2, 1, 1], dim=1)
    torch.testing.assert_close(result.double(), attend(q, k, v, plain(1, 64)[0]), atol=2e-2, rtol=2e-2)


def test_the_fastest_that_the_processor_has_is_chosen_for_bfloat16_alone() -> None:
    found = attention_products()
    of_bfloat16, of_float32 = cpu_kernels(torch.bfloat16), cpu_kernels(torch.float32)

    assert of_bfloat16 is not None
    assert of_float32 is not None
    assert of_bfloat16.products == found[0]
    assert of_float32.products == Products.FLOAT32
    assert Products.FLOAT32 in found
    flags = Path("/proc/cpuinfo").read_text().split() if platform.system() == "Linux" else []
    for products, flag in ((Products.AVX512_BF16, "avx512_bf16"), (Products.AMX, "amx_bf16")):
        assert products not in found or flag in flags
