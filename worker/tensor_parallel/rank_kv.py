"""KV handoffs of a worker with several ranks: each has its pool and transport; rank 0 runs the protocol."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from engine.executor.runner import ModelRunner
from engine.kv.cache.sidecars import Sidecars
from kv_transfer import KVLayout, KVPort, PoolMemory
from kv_transfer.integrity.digest import PageDigester
from kv_transfer.layout import SUM64
from kv_transfer.sharded import KINDS, ShardedDigester, ShardedTransport, serve_rank
from kv_transfer.sharded.writer import RankWriter
from kv_transfer.ticket import Peer
from worker.config import WorkerConfig
from worker.kv_pool_access import (
    digester_of,
    layout_of,
    memory_of,
    open_transport,
    worker_name,
)
from worker.tensor_parallel.rank_sockets import RankListener, join_rank_0

_HALF: Final = 32


def open_ranks(config: WorkerConfig, runner: ModelRunner, epoch: int, sidecars: Sidecars) -> KVPort:
    """On rank 0, while the other ranks call `serve_kv`: the KV port of the whole worker."""
    with RankListener(runner.communicator, epoch >> _HALF, epoch & ((1 << _HALF) - 1)) as ranks:
        links = ranks.accept(KINDS)
    layout = _layout(runner)
    whole = replace(layout, tp_size=1, tp_rank=0)
    pool, writer, digester = _rank(config, runner, epoch)
    memory = memory_of(runner.kv)
    return KVPort(
        ShardedTransport(worker_name(config, epoch), writer, pool, links, whole),
        # Of a virtual pool whose pages have the heads of all ranks.
        PoolMemory(0, whole.page_bytes, memory.num_pages, memory.device),
        whole,
        epoch,
        digester=ShardedDigester(digester, links, layout),
        sidecars=sidecars,
    )


def serve_kv(config: WorkerConfig, runner: ModelRunner) -> None:
    """On other ranks: serve `open_ranks` of rank 0, on a thread of its own."""
    rank_0, (high, low) = join_rank_0(runner.communicator, KINDS, 2)
    pool, writer, digester = _rank(config, runner, high << _HALF | low)
    threading.Thread(
        target=serve_rank, args=(rank_0, pool, writer, digester), name="kv-rank", daemon=True
    ).start()


def _rank(config: WorkerConfig, runner: ModelRunner, epoch: int) -> tuple[Peer, RankWriter, PageDigester]:
    """The pool of this rank, its writer and its digester."""
    layout, memory = _layout(runner), memory_of(runner.kv)
    transport = open_transport(config, _rank_name(config, epoch, layout.tp_rank), memory)
    pool = Peer.of(transport.name, epoch, transport.metadata, memory, layout)
    return pool, RankWriter(transport, layout), digester_of(runner.kv, memory, layout)


def _rank_name(config: WorkerConfig, epoch: int, rank: int) -> str:
    return f"{worker_name(config, epoch)}.{rank}"


def _layout(runner: ModelRunner) -> KVLayout:
    """Layout of one rank's pages. Digests are sums, so those of all ranks add up to the page's."""
    shard = runner.communicator.shard
    return replace(layout_of(runner), tp_size=shard.size, tp_rank=shard.rank, digest=SUM64)
