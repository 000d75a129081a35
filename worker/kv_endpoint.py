"""The engine's KV pool as the transfer side sees it: plain memory with a layout, behind a transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final

import torch

from engine.kv_pool import KVPool
from engine.runner import ModelRunner
from kv_transfer import KVLayout, PoolMemory
from kv_transfer.device_digest import DeviceDigester
from kv_transfer.digest import PageDigester, host_digester
from kv_transfer.layout import SUM64, XXH3
from kv_transfer.transports import LoopbackTransport, Transport
from worker.assembly import Parts
from worker.config import WorkerConfig

__all__ = [
    "KVEndpoint",
    "UnknownTransport",
    "digester_of",
    "layout_of",
    "memory_of",
    "open_endpoint",
    "open_transport",
    "worker_name",
]


class UnknownTransport(ValueError):
    """The configuration names a transport that this build does not have."""


@dataclass(frozen=True, slots=True)
class KVEndpoint:
    transport: Transport
    memory: PoolMemory
    layout: KVLayout
    digester: PageDigester
    epoch: int
    reopen: Callable[[], Transport] | None = None
    """Registers the pool anew under another name, once the transport was closed. None: cannot be done."""


def open_endpoint(parts: Parts) -> KVEndpoint:
    """Registers the pool with the configured transport, under a name that is this incarnation's own.

    Raises UnknownTransport, and what the transport raises where it cannot work.
    """
    config, runner = parts.config, parts.engine.runner
    if config.kv_by_ranks:
        from worker.kv_ranks import open_ranks

        return open_ranks(config, runner, parts.epoch)
    memory, layout = memory_of(runner.kv), layout_of(runner)
    name, times = worker_name(config, parts.epoch), count(1)

    def reopen() -> Transport:
        return open_transport(config, f"{name}~{next(times)}", memory)

    return KVEndpoint(
        transport=open_transport(config, name, memory),
        memory=memory,
        layout=layout,
        digester=digester_of(runner.kv, memory, layout),
        epoch=parts.epoch,
        reopen=reopen if config.transport in _CLOSED_FOR_GOOD else None,
    )


def worker_name(config: WorkerConfig, epoch: int) -> str:
    return f"{config.worker_id}-{epoch:016x}"


def open_transport(config: WorkerConfig, name: str, memory: PoolMemory) -> Transport:
    """Raises UnknownTransport, and what the transport raises where it cannot work."""
    opener = _TRANSPORTS.get(config.transport or "")
    if opener is None:
        raise UnknownTransport(f"--kv-transport {config.transport}: use one of {', '.join(_TRANSPORTS)}")
    return opener(name, memory, config.host)


def layout_of(runner: ModelRunner) -> KVLayout:
    """Of a worker of one rank."""
    spec, pool = runner.spec, runner.kv
    return KVLayout(
        weights=runner.weights,
        dtype=str(pool.tensor.dtype).removeprefix("torch."),
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        page_size=pool.page_size,
        # Pages are digested where they are. A worker on a CPU and one on a GPU thus have different layouts,
        # and refuse each other by its hash; one that asks the other's digest would be slow every time.
        digest=SUM64 if pool.tensor.is_cuda else XXH3,
    )


def digester_of(pool: KVPool, memory: PoolMemory, layout: KVLayout) -> PageDigester:
    """Of one rank's pool, where it is."""
    if pool.tensor.is_cuda:
        return DeviceDigester(pool.tensor, layout)
    return host_digester(memory, layout)


def memory_of(pool: KVPool) -> PoolMemory:
    view = None
    if pool.tensor.device.type == "cpu":
        view = pool.tensor.view(torch.uint8).reshape(-1).numpy().data
    return PoolMemory(
        address=pool.data_ptr,
        page_bytes=pool.page_bytes,
        num_pages=pool.num_pages,
        device=str(pool.tensor.device),
        view=view,
    )


def _nixl(name: str, memory: PoolMemory, host: str) -> Transport:
    # Imported where it is used: it loads UCX, which a loopback test need not wait for.
    from kv_transfer.transports.nixl import NixlTransport

    return NixlTransport(name, memory, host=host)


def _ucxx(name: str, memory: PoolMemory, host: str) -> Transport:
    from kv_transfer.transports.ucxx import UcxxTransport

    return UcxxTransport(name, memory, host=host)


def _loopback(name: str, memory: PoolMemory, host: str) -> Transport:
    return LoopbackTransport(name, memory)


_CLOSED_FOR_GOOD: Final = {"nixl", "loopback"}
"""Transports whose `close` ends every connection. UCXX keeps those that have receives under way: a worker
that uses it ends its process instead."""

_TRANSPORTS: Final[dict[str, Callable[[str, PoolMemory, str], Transport]]] = {
    "nixl": _nixl,
    "ucxx": _ucxx,
    "loopback": _loopback,
}
