"""Interface of the engine's KV pool to KV transfer: memory, layout, digester and transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from engine.executor.runner import ModelRunner
from engine.kv.cache.pool import KVPool
from kv_transfer import KVLayout, PoolMemory
from kv_transfer.integrity.device_digest import DeviceDigester
from kv_transfer.integrity.digest import PageDigester, host_digester
from kv_transfer.layout import SUM64, XXH3
from kv_transfer.state_layout import StateLayout
from kv_transfer.transports import LoopbackTransport, Transport
from worker.config import WorkerConfig


class UnknownTransport(ValueError):
    """The configured transport does not exist."""


def worker_name(config: WorkerConfig, epoch: int) -> str:
    return f"{config.worker_id}-{epoch:016x}"


def open_transport(config: WorkerConfig, name: str, memory: PoolMemory) -> Transport:
    """Raises UnknownTransport, and what the transport raises if it is not available."""
    opener = _TRANSPORTS.get(config.transport or "")
    if opener is None:
        raise UnknownTransport(f"--kv-transport {config.transport}: use one of {', '.join(_TRANSPORTS)}")
    return opener(name, memory, config)


def layout_of(runner: ModelRunner) -> KVLayout:
    """Layout of a worker with one rank."""
    spec, pool, recurrent = runner.spec, runner.kv, runner.spec.recurrent
    return KVLayout(
        model=runner.shape,
        dtype=_name(pool.tensor.dtype),
        groups=spec.kv_groups,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        page_size=pool.page_size,
        scales=() if pool.fp8 is None else tuple(pool.fp8.scales),
        computed_in=None if pool.fp8 is None else _name(pool.dtype),
        # CPUs and GPUs use different digests, the fastest of each. The digest is part of the layout hash, so
        # workers on a CPU and on a GPU refuse each other's KV.
        digest=SUM64 if pool.tensor.is_cuda else XXH3,
        state=None
        if recurrent is None
        else StateLayout(recurrent.key_heads, recurrent.state_rows(pool.dtype.itemsize)),
        sidecars=tuple(kind.identity for kind in runner.sidecars),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def digester_of(pool: KVPool, memory: PoolMemory, layout: KVLayout) -> PageDigester:
    """Digester of one rank's pool, on the pool's device."""
    if pool.tensor.is_cuda:
        return DeviceDigester(pool.memory, layout)
    return host_digester(memory, layout)


def memory_of(pool: KVPool) -> PoolMemory:
    view = None
    if pool.tensor.device.type == "cpu":
        view = pool.memory.view(-1).numpy().data
    return PoolMemory(
        address=pool.data_ptr,
        page_bytes=pool.page_bytes,
        num_pages=pool.num_blocks,
        device=str(pool.tensor.device),
        view=view,
    )


def _nixl(name: str, memory: PoolMemory, config: WorkerConfig) -> Transport:
    # Imported here because it loads UCX, which takes time.
    from kv_transfer.transports.nixl import NixlTransport

    return NixlTransport(name, memory, host=config.host, ports=config.ports)


def _ucxx(name: str, memory: PoolMemory, config: WorkerConfig) -> Transport:
    from kv_transfer.transports.ucxx import UcxxTransport

    return UcxxTransport(name, memory, host=config.host, ports=config.ports)


def _loopback(name: str, memory: PoolMemory, config: WorkerConfig) -> Transport:
    return LoopbackTransport(name, memory)


_TRANSPORTS: Final[dict[str, Callable[[str, PoolMemory, WorkerConfig], Transport]]] = {
    "nixl": _nixl,
    "ucxx": _ucxx,
    "loopback": _loopback,
}

REOPENABLE: Final = frozenset({"nixl", "loopback"})
"""Transports whose `close` ends every connection, so that they can be reopened. UCXX keeps connections with
pending receives, so a worker with UCXX exits instead."""
