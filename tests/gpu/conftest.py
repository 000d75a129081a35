"""Tests of this folder need an NVIDIA GPU and are skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True)
def _exact_float32() -> None:
    """float32 is an oracle only without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the kernels that Triton compiles from now on."""
    triton = pytest.importorskip("triton")
    names: list[str] = []
    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = lambda **details: names.append(details["repr"])
    yield names
    triton.knobs.runtime.jit_cache_hook = before
