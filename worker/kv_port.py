"""Registers a worker's KV pool with a transport, for one rank or several."""

from __future__ import annotations

from itertools import count

from kv_transfer import KVPort
from kv_transfer.transports import Transport
from worker.kv_pool_access import (
    REOPENABLE,
    digester_of,
    layout_of,
    memory_of,
    open_transport,
    worker_name,
)
from worker.parts import Parts
from worker.tensor_parallel.rank_kv import open_ranks


def open_port(parts: Parts) -> KVPort:
    """Register the pool with the configured transport, under a name unique to this incarnation.

    Raises UnknownTransport, and what opening the transport raises.
    """
    config, runner = parts.config, parts.runner
    if config.kv_by_ranks:
        return open_ranks(config, runner, parts.epoch)
    memory, layout = memory_of(runner.kv), layout_of(runner)
    name = worker_name(config, parts.epoch)
    times = count(1)

    def reopen() -> Transport:
        return open_transport(config, f"{name}~{next(times)}", memory)

    return KVPort(
        open_transport(config, name, memory),
        memory,
        layout,
        parts.epoch,
        digester=digester_of(runner.kv, memory, layout),
        reopen=reopen if config.transport in REOPENABLE else None,
    )
