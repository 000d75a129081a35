"""Opens the endpoint through which a worker's KV comes and goes, for one rank or several."""

from __future__ import annotations

from itertools import count

from worker.assembly import Parts
from worker.kv_pool_access import (
    KVEndpoint,
    digester_of,
    layout_of,
    memory_of,
    open_transport,
    worker_name,
)
from worker.tensor_parallel.rank_kv import open_ranks

__all__ = ["open_endpoint"]


def open_endpoint(parts: Parts) -> KVEndpoint:
    """Registers the pool with the configured transport, under a name that is this incarnation's own.

    Raises UnknownTransport, and what the transport raises where it cannot work.
    """
    config, runner = parts.config, parts.engine.runner
    if config.kv_by_ranks:
        return open_ranks(config, runner, parts.epoch)
    memory, layout = memory_of(runner.kv), layout_of(runner)
    name = worker_name(config, parts.epoch)
    times = count(1)
    return KVEndpoint(
        transport=open_transport(config, name, memory),
        memory=memory,
        layout=layout,
        digester=digester_of(runner.kv, memory, layout),
        epoch=parts.epoch,
        reopen=lambda: open_transport(config, f"{name}~{next(times)}", memory),
    )
