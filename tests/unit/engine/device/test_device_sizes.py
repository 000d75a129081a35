"""Sizes that follow from the device: chunks, graphs, and which attention can serve it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from common.kv_groups import full_group
from engine.device.defaults import DeviceDefaults, defaults_for
from engine.device.staging import send, upload
from engine.executor.graphs.cuda_graphs import graph_sizes
from engine.executor.graphs.piecewise_graphs import token_sizes
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import TorchAttention, UnsupportedBackend, attention_for
from engine.mixers.attention.select import FLASHINFER
from tests.unit.engine.dense_attention import plain

CPU = torch.device("cpu")
GIB = 1 << 30


@given(st.integers(1, 1024))
def test_every_batch_up_to_the_largest_finds_a_graph_not_much_larger(largest: int) -> None:
    sizes = graph_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for batch in range(1, largest + 1):
        graph = next(size for size in sizes if size >= batch)
        assert graph - batch < max(8, batch / 4), "padding costs at most a quarter"


@given(st.integers(16, 2048))
def test_every_step_up_to_the_largest_finds_a_chain_not_much_larger(largest: int) -> None:
    sizes = token_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == largest
    for tokens in range(1, largest + 1):
        chain = next(size for size in sizes if size >= tokens)
        assert chain - tokens < max(16, tokens / 8), "padding costs at most an eighth"


@pytest.mark.parametrize(
    ("gib", "tp_size", "expected"),
    [
        (16, 1, DeviceDefaults(2048, 8, 256)),
        (24, 1, DeviceDefaults(2048, 24, 256)),
        (24, 4, DeviceDefaults(2048, 80, 256)),
        (40, 1, DeviceDefaults(4096, 32, 512)),
        (80, 1, DeviceDefaults(8192, 256, 2048)),
        (80, 4, DeviceDefaults(8192, 512, 2048)),
        (141, 1, DeviceDefaults(16384, 512, 2048)),
        (180, 1, DeviceDefaults(16384, 512, 2048)),
    ],
)
def test_larger_gpus_take_larger_chunks_and_graphs(gib: int, tp_size: int, expected: DeviceDefaults) -> None:
    assert defaults_for(gib * GIB, tp_size) == expected


@pytest.mark.parametrize(
    ("gib", "below", "from_it_on"),
    [
        (20, (2048, 8), (2048, 24)),
        (35, (2048, 24), (4096, 32)),
        (60, (4096, 32), (8192, 256)),
        (90, (8192, 256), (16384, 512)),  # SGLang: from 160 GB on
    ],
)
def test_the_sizes_change_at_the_bounds_of_sglang(
    gib: int, below: tuple[int, int], from_it_on: tuple[int, int]
) -> None:
    for total_bytes, expected in ((gib * GIB - 1, below), (gib * GIB, from_it_on)):
        sizes = defaults_for(total_bytes)
        assert (sizes.chunk_budget, sizes.graph_batch) == expected


def make_pool(head_dim: int = 64) -> KVPool:
    return KVPool(
        num_pages=2,
        groups=full_group(1),
        num_kv_heads=2,
        head_dim=head_dim,
        page_size=4,
        dtype=torch.float32,
        device=CPU,
    )


def test_a_cpu_gets_torch_attention_where_no_kernels_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.mixers.attention.select.cpu_kernels", lambda _: None)
    assert isinstance(attention_for("auto", make_pool(), 4, plain(1, 64), max_requests=1), TorchAttention)


@pytest.mark.parametrize(("name", "why"), [("flashinfer", "it needs a GPU"), ("fastest", "is unknown")])
def test_a_backend_that_cannot_serve_is_refused_with_its_reason(name: str, why: str) -> None:
    with pytest.raises(UnsupportedBackend, match=why):
        attention_for(name, make_pool(), 4, plain(1, 64), max_requests=1)


def test_plans_are_written_for_the_flashinfer_that_is_required() -> None:
    project = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    assert f"flashinfer-python=={FLASHINFER}" in project["project"]["optional-dependencies"]["gpu"]


def test_arrays_arrive_as_they_were_sent() -> None:
    arrays = [np.arange(6).reshape(2, 3), np.array([7]), np.array([], dtype=np.int64)]
    for array, tensor in zip(arrays, send(arrays, CPU), strict=True):
        assert np.array_equal(tensor.numpy(), array)
    assert upload([1.5, 2.0], torch.float32, CPU).tolist() == [1.5, 2.0]
