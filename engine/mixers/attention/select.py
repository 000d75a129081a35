"""Selection of the attention backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Final

import torch

from engine.config import UNIFORM
from engine.errors import EngineError
from engine.kernels.cpu.library import cpu_kernels
from engine.kv.cache.pool import KVPool
from engine.mixers.attention.base import AttentionBackend
from engine.mixers.attention.cpu_backend import CpuAttention
from engine.mixers.attention.sparse_latents import SparseLatents
from engine.mixers.attention.torch_backend import TorchAttention
from engine.model_config.model_spec import ModelSpec
from engine.modeling.layers.layer_attention import LayerAttention

logger = logging.getLogger(__name__)

FLASHINFER: Final = "0.6.14"
"""We call internal functions, whose arguments may change with the version: see flashinfer/kernels.py."""
_HEAD_DIMS: Final = (64, 128, 256)
"""Head sizes that flashinfer has kernels for."""
_UNIFORM_DIMS: Final = (64, 128)
"""Head sizes that our uniform kernels are tested with."""
_MOST_GROUPED: Final = 64
_LATENTS: Final = (512, 64)
"""Features of latents, and rotated ones after them, that it has kernels for."""


class UnsupportedBackend(EngineError):
    """The requested attention backend cannot serve this model on this device."""


def attention_for(
    name: str,
    pool: KVPool,
    num_heads: int,
    layers: Sequence[LayerAttention],
    *,
    max_requests: int,
    max_context: int = 0,
) -> AttentionBackend:
    """The backend called `name`; for "auto", the fastest that supports the pool's device, dtype and heads.

    `layers`: how each layer attends. `max_context`: tokens of the longest; only uniform attention on a GPU
    needs it.
    """
    if name not in ("auto", "torch", "cpu", UNIFORM, "flashinfer"):
        raise UnsupportedBackend(f"attention backend {name!r} is unknown; use auto, torch, cpu or flashinfer")
    if name == UNIFORM and pool.tensor.is_cuda:
        if obstacle := _obstacle_to_uniform(pool, num_heads, layers):
            raise UnsupportedBackend(f"--reproducible: on a GPU, {obstacle}")
        from engine.mixers.attention.uniform.backend import UniformAttention  # imports CUDA libraries

        return UniformAttention(pool, num_heads, layers, max_requests=max_requests, max_context=max_context)
    if name in ("cpu", UNIFORM) or (name == "auto" and not pool.tensor.is_cuda):
        without = pool.tensor.is_cuda or pool.fp8 or _latent(layers) or not layers[0].causal
        kernels = None if without else cpu_kernels(pool.dtype)
        if kernels is not None:
            return CpuAttention(pool, num_heads, layers, kernels, uniform=name == UNIFORM)
        if name != "auto":
            raise UnsupportedBackend(
                f"attention backend {name}: no compiled kernels for {pool.tensor.dtype} on"
                f" {pool.tensor.device}"
                + (" with latent attention" if _latent(layers) else "")
                + ("" if layers[0].causal else " with bidirectional attention")
            )
    obstacle = _obstacle_to_flashinfer(pool, layers)
    if name == "flashinfer" and obstacle:
        raise UnsupportedBackend(f"attention backend flashinfer: {obstacle}; use auto or torch")
    if name == "torch" or obstacle:
        if pool.tensor.is_cuda and name == "auto":
            logger.warning("attention runs in plain torch, which is many times slower: %s", obstacle)
        backend = TorchAttention if layers[0].chosen is None else SparseLatents
        return backend(pool, num_heads, layers)
    from engine.mixers.attention.flashinfer.backend import FlashInferAttention  # imports CUDA libraries

    return FlashInferAttention(pool, num_heads, layers, max_requests=max_requests)


def build_kernels(
    name: str,
    spec: ModelSpec,
    device: torch.device,
    *,
    dtype: torch.dtype,
    stored: torch.dtype,
    report: Callable[[str], None],
) -> None:
    """Compile what a backend for `name` will load, where this machine lacks it: takes up to a minute.

    `dtype`: of queries. `stored`: of keys and values. `report`: see `builds.Report`.

    Raises BuildFailed.
    """
    if device.type != "cuda" or dtype == torch.float32 or _lacks_flashinfer():
        return
    from engine.kernels.flashinfer.libraries import build_libraries, libraries_of  # imports CUDA libraries

    latent = spec.latent
    known = spec.head_dim in _HEAD_DIMS
    if latent is not None:
        known = (latent.rank, latent.rotated) == _LATENTS and latent.indexer is None
    attends = name in ("auto", "flashinfer") and known
    attends = attends and spec.attention.other_heads is None and not spec.attention.bidirectional
    build_libraries(libraries_of(spec, dtype, stored, device) if attends else [], report)


def _latent(layers: Sequence[LayerAttention]) -> bool:
    return any(layer.latent_rank is not None for layer in layers)


def _obstacle_to_flashinfer(pool: KVPool, layers: Sequence[LayerAttention]) -> str | None:
    if not pool.tensor.is_cuda:
        return f"it needs a GPU, not {pool.tensor.device}"
    if not layers[0].causal:
        return "Baton calls it for causal attention only"
    if pool.dtype not in (torch.bfloat16, torch.float16):
        return f"it computes in 16 bits, not in {pool.dtype}"
    obstacle = _obstacle_of_heads(pool, layers)
    if obstacle is not None:
        return obstacle
    return _lacks_flashinfer()


def _obstacle_to_uniform(pool: KVPool, num_heads: int, layers: Sequence[LayerAttention]) -> str | None:
    if pool.dtype not in (torch.bfloat16, torch.float16) or pool.fp8 is not None:
        return f"keys and values of 16 bits are attended to, not {pool.tensor.dtype}"
    if _latent(layers) or not layers[0].causal or any(layer.source is not None for layer in layers):
        return "its kernels are causal attention to each layer's own keys and values alone"
    if pool.has_other_heads or pool.head_dim not in _UNIFORM_DIMS:
        return f"its kernels are made for heads of {_UNIFORM_DIMS} features, not {pool.head_dim}"
    if num_heads // pool.num_kv_heads > _MOST_GROUPED:
        return f"its kernels are made for {_MOST_GROUPED} query heads a key head at most"
    return _lacks_flashinfer()  # small operations are its kernels


def _lacks_flashinfer() -> str | None:
    if find_spec("flashinfer") is None:
        return "it is not installed (in a checkout of Baton: pip install '.[gpu]')"
    if (installed := version("flashinfer-python")) != FLASHINFER:
        return f"{installed} is installed, and Baton calls {FLASHINFER} (see pyproject.toml)"
    return None


def _obstacle_of_heads(pool: KVPool, layers: Sequence[LayerAttention]) -> str | None:
    if pool.has_other_heads or any(layer.source is not None for layer in layers):
        sizes = " and ".join(str(dim) for dim in sorted({heads.dim for heads in pool.heads}))
        return (
            f"Baton has no kernels for layers with heads of {sizes} features, or that share keys and values"
        )
    if layers[0].chosen is not None:
        return "Baton has no kernels for attention to the tokens that an indexer chooses"
    rank = layers[0].latent_rank
    if rank is None:
        dim = pool.head_dim
        return None if dim in _HEAD_DIMS else f"it has no kernels for heads of {dim} features"
    if pool.fp8 is not None:
        return "Baton has no kernels for latents in 8 bits"
    shape = (rank, 2 * pool.head_dim - rank)
    return None if shape == _LATENTS else "it has no kernels for latents of {} + {} features".format(*shape)
