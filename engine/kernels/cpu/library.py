"""Python bindings of the compiled kernels. Every call releases the interpreter lock."""

from __future__ import annotations

import ctypes
import logging
from ctypes import c_float, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engine.kernels.cpu.build import BuildError, built_library
from engine.model_config.parts.layer_options import Activation

logger = logging.getLogger(__name__)

_ACTIVATIONS: Final = {activation: index for index, activation in enumerate(Activation)}
_NAMES: Final = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class Products(IntEnum):
    """What multiplies blocks of query rows in attention; `enum Products` of attention_blocks.h."""

    FLOAT32 = 0
    AVX512_BF16 = 1
    """Dot products of pairs of bfloat16."""
    AMX = 2
    """Tiles of bfloat16."""


class Function(IntEnum):
    """Function of single numbers; `enum Function` of rows.h."""

    SIGMOID = 0
    GELU = 1
    """In the tanh approximation."""


class Step(ctypes.Structure):
    """A step and how the current layer attends; `struct Step` of attention.h."""

    _fields_ = (
        *((name, c_int64) for name in ("products", "threads", "num_tokens", "num_requests")),
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "page_size", "page_stride")),
        *((name, c_int64) for name in ("uniform", "stored")),
        *((name, c_void_p) for name in ("query_indptr", "context_lens", "page_indptr", "pages", "slots")),
        *((name, c_void_p) for name in ("positions", "angles", "sinks")),
        ("window", c_int64),
        *((name, c_float) for name in ("scale", "soft_cap")),
    )


class Quantized(ctypes.Structure):
    """A weight in codes of 4 or 8 bits; `struct Quantized` of quantized.h."""

    _fields_ = (
        *((name, c_int64) for name in ("bits", "group")),
        *((name, c_void_p) for name in ("codes", "scales", "offsets")),
        ("values", c_float * 16),
    )


class SlotPair(ctypes.Structure):
    """A pair of an adapter; `struct SlotPair` of low_rank.h."""

    _fields_ = (
        *((name, c_int64) for name in ("rank", "first", "columns")),
        *((name, c_void_p) for name in ("a", "b")),
    )


class SlotPairs(ctypes.Structure):
    """An adapter's pairs of a layer; `struct SlotPairs` of low_rank.h."""

    _fields_ = (("count", c_int64), ("pairs", c_void_p))


class CpuKernels:
    """Kernels for one dtype, float32 or bfloat16. Tensors are on the CPU; shapes are not checked.

    `products`: of attention, which the processor must have; float32 has one kind only.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, products: Products) -> None:
        name = _NAMES[dtype]
        self.products = products
        self._attend = _function(library, f"baton_attend_{name}", *[c_void_p] * 4)
        self._rms_norm = _function(
            library,
            f"baton_rms_norm_{name}",
            *[c_int64] * 4,
            c_void_p,
            *[c_int64] * 2,
            *[c_void_p] * 2,
            c_float,
            c_void_p,
            *[c_int64] * 2,
        )
        self._gate = _function(library, f"baton_gate_{name}", *[c_int64] * 4, *[c_void_p] * 2)
        self._each = {
            other: _function(library, f"baton_each_{name}", *[c_int64] * 3, *[c_void_p] * 2)
            for other, name in _NAMES.items()
        }
        self._linear = _function(
            library, f"baton_linear_{name}", *[c_int64] * 4, c_void_p, c_int64, *[c_void_p] * 3
        )
        self._quantized_linear = _function(
            library, f"baton_quantized_linear_{name}", *[c_int64] * 4, c_void_p, c_int64, *[c_void_p] * 3
        )

        self._add_low_rank = _function(
            library,
            f"baton_add_low_rank_{name}",
            *[c_int64] * 3,
            *[c_void_p] * 3,
            c_int64,
            c_void_p,
            c_int64,
        )

    def attend(self, step: Step, layer: Tensor, qkv: Tensor, out: Tensor) -> None:
        """See `AttentionBackend.forward`; `layer` is the pool's view of one layer, `qkv` is contiguous."""
        self._attend(ctypes.addressof(step), layer.data_ptr(), qkv.data_ptr(), out.data_ptr())

    def rms_norm(
        self, x: Tensor, weight: Tensor, eps: float, out: Tensor, residual: Tensor | None = None
    ) -> None:
        """`out` is `x` [T, d] or [T, H, d], normalised over d, times `weight`; it may be `x`.

        With a contiguous `residual` [T, d], x + residual is normalised, and stored in `residual`.
        """
        outer, size = x.shape[0], x.shape[-1]
        inner = x.shape[1] if x.dim() == 3 else 1
        self._rms_norm(
            torch.get_num_threads(),
            outer,
            inner,
            size,
            x.data_ptr(),
            x.stride(0),
            x.stride(1),
            None if residual is None else residual.data_ptr(),
            weight.data_ptr(),
            eps,
            out.data_ptr(),
            out.stride(0),
            out.stride(1),
        )

    def gate(self, gate_up: Tensor, activation: Activation, out: Tensor) -> None:
        """The activation of contiguous `gate_up` [T, 2I], gate first: `out` [T, I]."""
        rows, size = out.shape
        threads = torch.get_num_threads()
        self._gate(_ACTIVATIONS[activation], threads, rows, size, gate_up.data_ptr(), out.data_ptr())

    def each(self, function: Function, x: Tensor, out: Tensor) -> None:
        """`function` of each number of contiguous `x`, of either dtype; equal numbers have equal results."""
        self._each[x.dtype](function, torch.get_num_threads(), x.numel(), x.data_ptr(), out.data_ptr())

    def linear(self, x: Tensor, panels: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """`out` [T, N] = `x` [T, K], rows contiguous, times a weight in the panels that linear.h describes.

        In bfloat16, K is even.
        """
        rows, depth = x.shape
        self._linear(
            torch.get_num_threads(),
            rows,
            out.shape[1],
            depth,
            x.data_ptr(),
            x.stride(0),
            panels.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
        )

    def quantized_linear(self, x: Tensor, weight: Quantized, bias: Tensor | None, out: Tensor) -> None:
        """`out` [T, N] = `x` [T, K], rows contiguous, times a weight whose tensors quantized.h describes."""
        rows, depth = x.shape
        self._quantized_linear(
            torch.get_num_threads(),
            rows,
            out.shape[1],
            depth,
            x.data_ptr(),
            x.stride(0),
            ctypes.addressof(weight),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
        )

    def add_low_rank(
        self, x: Tensor, slots: Tensor, adapters: ctypes.Array[SlotPairs], product: Tensor
    ) -> None:
        """Add to each row of `product` [T, N] what the adapter of its slot (-1: none) makes of `x` [T, K].

        Rows are contiguous. `slots` is int64.
        """
        rows, depth = x.shape
        self._add_low_rank(
            torch.get_num_threads(),
            rows,
            depth,
            slots.data_ptr(),
            ctypes.addressof(adapters),
            x.data_ptr(),
            x.stride(0),
            product.data_ptr(),
            product.stride(0),
        )


def cpu_kernels(dtype: torch.dtype) -> CpuKernels | None:
    """The kernels for tensors of `dtype`; None if there are none, or they cannot be compiled here.

    The first call compiles them if they are not cached, which takes some seconds.
    """
    library = _library() if dtype in _NAMES else None
    if library is None:
        return None
    products = attention_products()[0] if dtype == torch.bfloat16 else Products.FLOAT32
    return CpuKernels(library, dtype, products)


@cache
def attention_products() -> list[Products]:
    """What can multiply bfloat16 in attention on this machine, the fastest first; empty without kernels."""
    library = _library()
    if library is None:
        return []
    fastest = library.baton_fastest_products()
    return sorted(filter(library.baton_supports, Products), key=lambda products: products != fastest)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        path: Path = built_library()
        library = ctypes.CDLL(str(path))
    except (BuildError, OSError) as error:
        logger.info("no compiled CPU kernels, plain torch serves instead, slower: %s", error)
        return None
    fastest = Products(library.baton_fastest_products()).name
    logger.info("compiled CPU kernels serve, attention to bfloat16 prompts by %s: %s", fastest, path)
    return library


def _function(library: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, None
    return function
