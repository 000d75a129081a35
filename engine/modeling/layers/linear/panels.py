"""Weights in panels, and their products by a kernel of our own, where it is faster than oneDNN.

Few rows start sooner, since a call of oneDNN takes some 18 µs before it computes, and read the weight
ahead. Many rows take as long, except in bfloat16: on Intel's processors without AMX oneDNN multiplies at
half the rate of float32, and with AMX at many times that rate. Which one serves is measured, once per
process and dtype. Time relative to oneDNN for SmolLM2's matrices of 576 columns, one core:

    rows                                 1     4     16    64    512
    float32, AMD with AVX512             0.60  0.9   0.97  0.98  1.0
    bfloat16, AMD with avx512_bf16       0.6   0.7   0.9   0.98  1.0
    bfloat16, Xeon without AMX           0.88  0.80  0.82        0.59
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from threading import Lock
from typing import Final, Generic, ParamSpec, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import EngineError
from engine.kernels.cpu.library import CpuKernels, cpu_kernels
from engine.modeling.layers.linear.onednn import onednn_product, packed

P = ParamSpec("P")

_WIDTH: Final = 64
"""Rows of the weight per panel."""
TRIAL_ROWS: Final = (1, 4, 32, 256)
"""Row counts that are measured, all weighted equally: decodes alone, in batches, and a prefill chunk."""
_ROW_COUNTS: Final = (2, 3, 4, 5, 16, 31, 97, 200)
"""Numbers of rows for which results are compared with those of single rows."""
_ONLY_PANELS: Final[ContextVar[bool]] = ContextVar("only_panels", default=False)
_TRIAL_SHAPE: Final = (3072, 576)
_FEWEST_RUNS, _MOST_RUNS, _MOST_SECONDS = 3, 20, 0.02


class PackedMatrix(Protocol):
    """A weight [N, K], as a kernel of our own multiplies it."""

    @property
    def memory(self) -> Tensor: ...

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K] times the weight transposed, plus `bias` [N]: [T, N]."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [N, K] in panels of 64 rows, the last filled up with zeros."""

    kernels: CpuKernels
    memory: Tensor
    """[P, K, 64, 1] in float32, [P, K / 2, 64, 2] in bfloat16."""
    features: int
    """N"""

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x [T, K], rows contiguous, times the weight transposed, plus `bias`: [T, N]."""
        out = x.new_empty(len(x), self.features)
        self.kernels.linear(x, self.memory, bias, out)
        return out


def faster_panels(weight: Tensor) -> PackedMatrix | None:
    """A copy of `weight` [N, K] in panels; None if there is no kernel for it, or oneDNN is faster here."""
    if (panels := wanted_panels(weight)) is not None:
        return panels
    return panels_of(weight) if weight.device.type == "cpu" and panels_win(weight.dtype) else None


def wanted_panels(weight: Tensor, results: torch.dtype | None = None) -> PackedMatrix | None:
    """`weight` [N, K] as it is packed within `only_panels`, else None. Raises EngineError.

    `results`: dtype of the products, by default that of the weight.
    """
    if not must_be_uniform():
        return None
    if weight.is_cuda:
        from engine.modeling.layers.linear.uniform_gpu import (
            UniformMatrix,  # Triton ships only with torch's CUDA builds
        )

        return UniformMatrix(weight, results or weight.dtype)
    return uniform_panels(weight)


def must_be_uniform() -> bool:
    """Whether this is within `only_panels`."""
    return _ONLY_PANELS.get()


@contextmanager
def only_panels(wanted: bool) -> Iterator[None]:
    """Context in which weights are packed for one kernel, whatever is faster, if `wanted`.

    Its products of a row are the same whatever other rows there are: which kernel a trial finds faster, and
    oneDNN's choice by the number of rows, would differ between workers and steps.
    """
    token = _ONLY_PANELS.set(wanted)
    try:
        yield
    finally:
        _ONLY_PANELS.reset(token)


def uniform_panels(weight: Tensor) -> Panels:
    """A copy of `weight` [N, K] in panels. Raises EngineError if products of a row depend on the others."""
    panels = panels_of(weight) if weight.device.type == "cpu" else None
    if panels is None or not _is_uniform(weight.dtype):
        raise EngineError(
            f"--reproducible: on this machine, products in {weight.dtype} depend on the number of rows;"
            " try --dtype float32"
        )
    return panels


@cache
def _is_uniform(dtype: torch.dtype) -> bool:
    """Whether a row's product is the same alone and among others, measured on one weight."""
    features, depth = _TRIAL_SHAPE
    values = torch.linspace(-1, 1, features * depth, dtype=torch.float32, device="cpu").sin()
    weight = values.view(features, depth).to(dtype)
    rows = weight[: max(_ROW_COUNTS)]
    # Sums cancel, so that results are what rounding leaves, which depends on the order of summation.
    panels = panels_of(torch.cat((weight[: 3 * _WIDTH], -weight[: 3 * _WIDTH]), dim=1))
    rows = torch.cat((rows, rows), dim=1)
    assert panels is not None
    alone = torch.cat([panels.product(row[None], None) for row in rows])
    return all(torch.equal(panels.product(rows[:count], None), alone[:count]) for count in _ROW_COUNTS)


def panels_of(weight: Tensor) -> Panels | None:
    """A copy of `weight` [N, K] in panels; None if no kernel multiplies its dtype, or this K."""
    kernels = cpu_kernels(weight.dtype)
    features, depth = weight.shape
    together = 2 if weight.dtype == torch.bfloat16 else 1
    if kernels is None or depth % together:
        return None
    panels = -(-features // _WIDTH)
    whole = functional.pad(weight, (0, 0, 0, panels * _WIDTH - features))
    memory = whole.view(panels, _WIDTH, depth // together, together).transpose(1, 2).contiguous()
    return Panels(kernels, memory, features)


class MeasuredOnce(Generic[P]):
    """A measurement that is kept, as by `functools.cache`: threads that ask at once get the same answer."""

    def __init__(self, measure: Callable[P, bool]) -> None:
        self._answers = cache(measure)
        self._lock = Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        with self._lock:
            return self._answers(*args, **kwargs)  # type: ignore[arg-type]

    def cache_clear(self) -> None:
        self._answers.cache_clear()


@MeasuredOnce
def panels_win(dtype: torch.dtype) -> bool:
    """Whether panels are faster than oneDNN, by the mean over `TRIAL_ROWS`, measured on one weight."""
    features, depth = _TRIAL_SHAPE
    # Not random: drawing would advance torch's generator, which the caller may have seeded.
    weight = torch.linspace(-1, 1, features * depth, dtype=torch.float32, device="cpu")
    weight = weight.view(features, depth).to(dtype)
    panels, onednn = panels_of(weight), packed(weight)
    if panels is None or not onednn.is_mkldnn:
        return panels is not None
    return faster(
        (fastest(partial(panels.product, weight[:rows], None)) for rows in TRIAL_ROWS),
        (fastest(partial(onednn_product, weight[:rows], onednn, None)) for rows in TRIAL_ROWS),
    )


def faster(ours: Iterable[float], theirs: Iterable[float]) -> bool:
    """Whether `ours`, in seconds, are shorter than `theirs` by their geometric mean."""
    return math.prod(a / b for a, b in zip(ours, theirs, strict=True)) < 1


def fastest(product: Callable[[], Tensor], most_seconds: float = _MOST_SECONDS) -> float:
    """Seconds of the fastest of 3 to 20 runs, which take some `most_seconds` together."""
    took: list[float] = []
    while len(took) < _FEWEST_RUNS or (len(took) < _MOST_RUNS and sum(took) < most_seconds):
        began = time.perf_counter()
        product()
        took.append(time.perf_counter() - began)
    return min(took)
