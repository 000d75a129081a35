"""Sizes the KV pool of a worker: what weights and activations leave of its memory. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from common.kv_groups import RequestPages
from engine.config import SchedulerConfig
from engine.kv.cache.slot_count import wanted_slots
from engine.model_config.model_spec import ModelSpec
from engine.model_config.parts.layer_options import Head
from engine.modeling.loader.checkpoint import Checkpoint
from router.cluster.worker_config.machine import Machine, PlanError
from router.config.choices import Dtype, KVCacheDtype
from router.config.settings import RouterConfig

_BYTES_PER_VALUE: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
_CPU_POOL_TOKENS: Final = 16_384
GPU_MEMORY_FRACTION: Final = 0.9


@dataclass(frozen=True, slots=True)
class PoolSize:
    """Estimated KV pool of one worker before loading. GPU workers measure the remaining memory instead."""

    dtype: str
    token_bytes: int
    num_pages: int
    tokens: int
    """Tokens of the longest requests: windows make room for more of them than `token_bytes` says."""
    longest: int
    """Tokens of the largest request that the pool holds, and the model or --max-model-len allows."""


def pool_size(
    config: RouterConfig,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    part: ModelSpec,
    machine: Machine,
    scheduler: SchedulerConfig,
    ranks: int,
) -> PoolSize:
    """`part`: the share of `spec` that one of the `ranks` holds. Raises PlanError."""
    dtype, limit = dtype_of(config, spec, machine), model_limit(config, checkpoint, spec)
    taken = _weight_bytes(checkpoint, spec, dtype, machine.device) // ranks
    taken += _step_bytes(scheduler, part, dtype, limit)
    states = _state_bytes(config, scheduler, part, dtype)
    pool_tokens = _pool_tokens(config, checkpoint, part, machine, dtype, limit, taken, states)
    num_pages = pool_tokens // config.page_size * len(part.kv_groups)  # a block has a page in every group
    pages = RequestPages.of_groups(config.page_size, part.kv_groups, scheduler.largest_chunk(limit))
    longest = pages.largest_request(num_pages, limit)
    return PoolSize(
        dtype=_kv_dtype(config, dtype),
        token_bytes=_token_bytes(config, part, dtype),
        num_pages=num_pages,
        tokens=pages.tokens_in(num_pages, longest),
        longest=longest,
    )


def dtype_of(config: RouterConfig, spec: ModelSpec, machine: Machine) -> str:
    if config.dtype is not Dtype.AUTO:
        return str(config.dtype.value)
    if machine.device == "cpu":
        # Vectors are compared with those that others have computed.
        exact = spec.head is not Head.VOCABULARY and spec.dtype == "float32"
        return "float32" if exact else machine.cpu_dtype
    return spec.dtype if spec.dtype in ("bfloat16", "float16") else "bfloat16"


def model_limit(config: RouterConfig, checkpoint: Checkpoint, spec: ModelSpec) -> int:
    if config.max_model_len is None:
        return spec.max_position
    if config.max_model_len > spec.max_position:
        raise PlanError(
            f"--max-model-len {config.max_model_len} is more than {checkpoint.name} can do;"
            f" use {spec.max_position} or less"
        )
    return config.max_model_len


def _pool_tokens(
    config: RouterConfig,
    checkpoint: Checkpoint,
    part: ModelSpec,
    machine: Machine,
    dtype: str,
    limit: int,
    taken: int,
    states: int,
) -> int:
    """For tokens that no window drops, a multiple of the page size. `part`, `taken` by weights and
    activations, and the most bytes for recurrent `states` are of one rank.

    The memory fraction means the same on every device: the share of weights, activations and pool together.
    """
    page = config.page_size
    if config.kv_pool_tokens is not None:
        _check_pool(config.kv_pool_tokens, _token_bytes(config, part, dtype), machine)
        return config.kv_pool_tokens // page * page
    if config.kv_memory_fraction is None and machine.device == "cpu":
        return math.ceil(max(_CPU_POOL_TOKENS, limit) / page) * page
    fraction = config.kv_memory_fraction or GPU_MEMORY_FRACTION
    left = int(machine.memory_bytes * fraction) - taken
    left -= min(states, left // 2) if machine.device == "cuda" else states
    tokens = left // _token_bytes(config, part, dtype) // page * page
    if tokens < page:
        raise PlanError(
            f"{checkpoint.name} leaves no room for KV within {100 * fraction:g}% of"
            f" {machine.memory_bytes / 2**30:.1f} GiB of memory; raise --kv-memory-fraction, or use"
            " --dtype bfloat16, a smaller model, or more ranks (--tensor-parallel-size)"
        )
    return tokens


def _check_pool(tokens: int, token_bytes: int, machine: Machine) -> None:
    """Raises PlanError for a pool that alone is larger than the memory."""
    if tokens * token_bytes > machine.memory_bytes:
        raise PlanError(
            f"--kv-pool-tokens {tokens} takes {tokens * token_bytes / 2**30:,.1f} GiB, {token_bytes:,} bytes"
            f" each, of {machine.memory_bytes / 2**30:,.1f} GiB that a rank has; use"
            f" {machine.memory_bytes // token_bytes} or less"
        )


def _state_bytes(config: RouterConfig, scheduler: SchedulerConfig, part: ModelSpec, dtype: str) -> int:
    """Size of all slots for recurrent states, as many as wanted."""
    if part.recurrent is None:
        return 0
    slots = wanted_slots(config.state_slots, scheduler.max_running_requests)
    return slots * part.recurrent.state_bytes(_BYTES_PER_VALUE[dtype])


def _token_bytes(config: RouterConfig, spec: ModelSpec, dtype: str) -> int:
    return int(spec.kv_token_bytes(_BYTES_PER_VALUE[_kv_dtype(config, dtype)]))


def _kv_dtype(config: RouterConfig, dtype: str) -> str:
    return "fp8" if config.kv_cache_dtype is KVCacheDtype.FP8 else dtype


def _weight_bytes(checkpoint: Checkpoint, spec: ModelSpec, dtype: str, device: str) -> int:
    """Size in memory: from the size on disk, or if weights are quantized, from the number of parameters.

    Where they may be dequantized, their size is that of dense ones.
    """
    if spec.quantization is not None:
        values = _BYTES_PER_VALUE[dtype]
        return int(spec.weight_bytes(values) if device == "cuda" else spec.parameters * values)
    folder = checkpoint.path
    files = [*folder.glob("*.safetensors")] or folder.glob("pytorch_model.bin")
    stored = sum(file.stat().st_size for file in files)
    return stored * _BYTES_PER_VALUE[dtype] // _BYTES_PER_VALUE.get(spec.dtype, 2)


def _step_bytes(scheduler: SchedulerConfig, part: ModelSpec, dtype: str, limit: int) -> int:
    """Estimated activations and logits of the largest step. A GPU worker measures them."""
    running = scheduler.max_running_requests
    tokens = scheduler.prefill_limit(limit) + running
    features = 2 * part.hidden_size + 2 * part.widest_mlp + 2 * part.q_size + 2 * part.kv_size
    logits = 2 * running * part.vocab_size  # and a copy to sample from, in float32
    return tokens * features * _BYTES_PER_VALUE[dtype] + logits * _BYTES_PER_VALUE["float32"]
