"""Tests of this folder need an NVIDIA GPU and are skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest
import torch

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no GPU"))


@pytest.fixture(autouse=True, scope="session")
def _attention_kernels() -> None:
    """Begins to compile those of all tests, beside the tests that need none. One process of a machine does;
    a test waits for its own."""
    if not torch.cuda.is_available() or find_spec("flashinfer") is None:
        return
    from engine.kernels.flashinfer.libraries import Kernel, Library, build_libraries

    bf16, e4m3 = torch.bfloat16, torch.float8_e4m3fn
    kernels = [Kernel.FA2, Kernel.FA3] if torch.cuda.get_device_capability() == (9, 0) else [Kernel.FA2]
    wanted = [
        Library(kernel, bf16, bf16, dim, windowed, capped)
        for kernel in kernels
        for dim, asked in ((64, (0, 1)), (128, (0, 3)), (256, (0, 1, 2, 3)))
        for windowed, capped in ((bool(number & 1), bool(number & 2)) for number in asked)
    ]
    wanted += [Library(Kernel.FA2, bf16, e4m3, 128, both, both) for both in (False, True)]
    Thread(target=build_libraries, args=(wanted, lambda said: None), daemon=True).start()


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
