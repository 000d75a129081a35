"""The part of flashinfer's attention kernels that Baton uses: plan once per step, run once per layer.

flashinfer's wrapper classes plan with Python loops over requests, copy each small array separately and
allocate on every call. The functions below them take finished arrays, which a step already has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from engine.kernels.flashinfer.libraries import Kernel, Library, load
from engine.modeling.layers.layer_attention import LayerAttention

_INT_WORKSPACE_BYTES: Final = 8 << 20

_NHD, _HND = 0, 1  # flashinfer's TensorLayout: [token, head, feature] and [page, head, token, feature]
_CAUSAL: Final = 1  # its MaskMode


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class Ragged:
    """The shape of a batch, on the host: int32 arrays."""

    query_indptr: npt.NDArray[np.int32]
    """[R + 1]."""
    kv_indptr: npt.NDArray[np.int32]
    """[R + 1]: where each request's keys begin: among `Tables.pages`, or as rows for a RaggedKernel."""
    context_lens: npt.NDArray[np.int32]
    """[R]."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The same on the device, with the pages: int32 tensors."""

    query_indptr: torch.Tensor
    page_indptr: torch.Tensor
    pages: torch.Tensor
    last_page_lens: torch.Tensor


Dtypes: TypeAlias = tuple[torch.dtype, torch.dtype]
"""Dtypes of queries, and of keys and values."""


def _window_left(rule: LayerAttention) -> int:
    """Tokens to the left of a query that it attends to; -1: all."""
    return -1 if rule.window is None else rule.window - 1


_ABSENT: Final[dict[Kernel, tuple[None, ...]]] = {
    # Custom mask and its offsets, ALiBi, items to score (prefix lengths, positions, longest item), and
    # scales of blocks of keys and of values.
    Kernel.FA2: (None,) * 8,
    # Items to score, and a scale of values for each head.
    Kernel.FA3: (None,) * 4,
}
_NEUTRAL: Final[dict[Kernel, tuple[float | int, ...]]] = {
    Kernel.FA2: (1.0, 1.0, 0),  # queries and keys are already rotated; no items to score
    Kernel.FA3: (1.0, 0),  # values are not scaled; no items to score
}


def _options(
    kernel: Kernel, rule: LayerAttention, layout: int, lse: torch.Tensor | None, key_scale: float
) -> tuple[Any, ...]:
    """Arguments that paged and ragged runs take after their tensors."""
    return (
        lse,
        _CAUSAL,
        layout,
        _window_left(rule),
        True,  # launch early, where the device can
        *_ABSENT[kernel],
        rule.soft_cap or 0.0,
        rule.scale * key_scale,
        *_NEUTRAL[kernel],
    )


class _Kernel:
    """One causal attention kernel and its current plan."""

    def __init__(
        self,
        kernel: Kernel,
        heads: Heads,
        page_size: int,
        dtypes: Dtypes,
        workspace: torch.Tensor,
        rule: LayerAttention,
    ) -> None:
        """`workspace` holds partial results where contexts are split; kernels of one stream may share it.

        `rule`: without sinks, which a caller adds by the log-sum-exp of each row.
        """
        self._kernel = kernel
        self._heads = heads
        self._page_size = page_size
        self._floats = workspace
        self._ints = torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, device=workspace.device)
        # flashinfer writes a plan here and copies it to the device from here, so it must not change before
        # that copy is done. `_copied` is the only wait for the device in a step. The copy is a step's first
        # work, so with planning one step ahead it has finished.
        self._pinned = torch.empty(_INT_WORKSPACE_BYTES, dtype=torch.uint8, pin_memory=True)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._rule = rule
        queries, stored = dtypes
        windowed, capped = rule.window is not None, rule.soft_cap is not None
        self._module = load(Library(kernel, queries, stored, heads.dim, windowed, capped))
        self._plan: Any = None

    def _make_plan(self, batch: Ragged) -> None:
        """Plan the coming runs; enqueues one copy."""
        self._copied.synchronize()
        arguments = [
            self._floats,
            self._ints,
            self._pinned,
            torch.from_numpy(batch.query_indptr),
            torch.from_numpy(batch.kv_indptr),
            torch.from_numpy(batch.context_lens),
            int(batch.query_indptr[-1]),
            len(batch.context_lens),
            self._heads.query,
            self._heads.kv,
            self._page_size,
            False,  # not for a graph
            self._heads.dim,
            self._heads.dim,
            True,  # causal
            _window_left(self._rule),
        ]
        if self._kernel is Kernel.FA2:
            arguments += [-1, False, 0]  # no fixed split, splitting allowed, no kernel running concurrently
        self._plan = self._module.plan(*arguments)
        self._copied.record()


class PagedKernel(_Kernel):
    """Attention over keys and values in the pages of the pool."""

    def plan(self, batch: Ragged) -> None:
        self._make_plan(batch)

    def run(
        self,
        tables: Tables,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        key_scale: float = 1.0,
    ) -> None:
        """Attend with q `[T, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`.

        `lse` [T, heads] float32 gets the base-2 logarithm of each row's sum of exponentials. Stored keys are
        multiplied with `key_scale`.
        """
        self._module.paged_run(
            self._floats,
            self._ints,
            self._plan,
            q,
            pages[:, 0],
            pages[:, 1],
            tables.query_indptr,
            tables.page_indptr,
            tables.pages,
            tables.last_page_lens,
            out,
            *_options(self._kernel, self._rule, _HND, lse, key_scale),
        )


class RaggedKernel(_Kernel):
    """Attention over contiguous keys and values, which bulk loads read faster than pages.

    A kernel reads whole tiles, up to `TILE` rows past a request's end. It masks their scores but multiplies
    their values by zero, so they must not be NaN.
    """

    TILE: Final = 192

    _indptrs: tuple[torch.Tensor, torch.Tensor]

    def plan(self, batch: Ragged, query_indptr: torch.Tensor, kv_indptr: torch.Tensor) -> None:
        self._make_plan(batch)
        self._indptrs = (query_indptr, kv_indptr)

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
        *,
        key_scale: float = 1.0,
    ) -> None:
        """Attend with q `[T, heads, dim]` to k and v, `[rows, kv_head, dim]`; else as a PagedKernel."""
        options = _options(self._kernel, self._rule, _NHD, lse, key_scale)
        self._module.ragged_run(self._floats, self._ints, self._plan, q, k, v, *self._indptrs, out, *options)
