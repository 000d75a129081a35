"""Chooses between cuBLAS and cuBLASLt for a model's matrices, by measurement for a number of rows.

cuBLAS and cuBLASLt choose among the same kernels by different heuristics. On an H200 the
matrices of an 8B model take cuBLASLt 5% less time for 96 rows, and 9% more for 768. Neither is always right,
so a graph is captured with the one that is measured to be faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.modeling.layers.linear.linear_layer import Linear, PlainWeight
from engine.modeling.models.base import CausalLM

_WEIGHTS: Final = 16
"""More than any cache holds, so that they are read from memory as in a model."""
_ROUNDS: Final = 3

Library: TypeAlias = str
_LIBRARIES: Final[tuple[Library, ...]] = ("cublas", "cublaslt")


def sample_weights(model: CausalLM) -> list[Tensor]:
    """The matrices of the first layers; those that these libraries do not multiply are left out."""
    linears = (m for m in model.modules() if isinstance(m, Linear) and m is not model.head)
    return [
        linear.weight
        for linear in islice(linears, _WEIGHTS)
        if isinstance(linear.method, PlainWeight) and linear.method.panels is None
    ]


@contextmanager
def faster_library(weights: Sequence[Tensor], rows: int) -> Iterator[None]:
    """Context in which torch uses the faster library for this number of rows. Measures on this stream."""
    if not weights:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    inputs = {
        size: torch.randn(rows, size, dtype=weights[0].dtype, device=weights[0].device)
        for size in {weight.shape[1] for weight in weights}
    }
    times = {library: _milliseconds(library, weights, inputs) for library in _LIBRARIES}
    torch.backends.cuda.preferred_blas_library(min(times, key=lambda library: times[library]))
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


def _milliseconds(library: Library, weights: Sequence[Tensor], inputs: dict[int, Tensor]) -> float:
    torch.backends.cuda.preferred_blas_library(library)
    times: list[float] = []
    for _ in range(1 + _ROUNDS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        for weight in weights:
            functional.linear(inputs[weight.shape[1]], weight)
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return min(times[1:])
