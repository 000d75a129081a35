"""KV handoffs of a worker with several ranks: each has its pool and transport; rank 0 runs the protocol."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Final

import torch

from engine.executor.runner import ModelRunner
from kv_transfer import KVLayout, KVPort, PoolMemory
from kv_transfer.errors import BadMessage, RankGone
from kv_transfer.integrity.digest import PageDigester
from kv_transfer.layout import SUM64
from kv_transfer.sharded import RankLink, ShardedDigester, ShardedTransport, serve_rank
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

_LOOPBACK: Final = "127.0.0.1"
_PATIENCE_S: Final = 60.0
_HALF: Final = 32


def open_ranks(config: WorkerConfig, runner: ModelRunner, epoch: int) -> KVPort:
    """On rank 0, while the other ranks call `serve_kv`: the KV port of the whole worker."""
    shard = runner.communicator.shard
    with socket.create_server((_LOOPBACK, 0)) as listener:
        listener.settimeout(_PATIENCE_S)
        port: int = listener.getsockname()[1]
        announced = [port, epoch >> _HALF, epoch & ((1 << _HALF) - 1)]
        runner.communicator.broadcast_host(torch.tensor(announced, dtype=torch.int64))
        links = _accept(listener, config, epoch, shard.size)
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
    )


def serve_kv(config: WorkerConfig, runner: ModelRunner) -> None:
    """On other ranks: serve `open_ranks` of rank 0, on a thread of its own."""
    announced = torch.zeros(3, dtype=torch.int64)
    runner.communicator.broadcast_host(announced)
    port, high, low = announced.tolist()
    pool, writer, digester = _rank(config, runner, high << _HALF | low)
    connection = socket.create_connection((_LOOPBACK, port), _PATIENCE_S)
    connection.settimeout(None)
    threading.Thread(
        target=serve_rank, args=(connection, pool, writer, digester), name="kv-rank", daemon=True
    ).start()


def _accept(listener: socket.socket, config: WorkerConfig, epoch: int, size: int) -> list[RankLink]:
    """Links to the other ranks, in order. A rank authenticates by the epoch in its name: 64 random bits."""
    links: dict[str, RankLink] = {}
    names = [_rank_name(config, epoch, rank) for rank in range(1, size)]
    while not links.keys() >= set(names):
        connection, _ = listener.accept()
        link = _introduced(connection)
        if link is None or link.pool.name not in names or link.pool.name in links:
            connection.close()  # it is no rank of this worker
        else:
            links[link.pool.name] = link
    return [links[name] for name in names]


def _introduced(connection: socket.socket) -> RankLink | None:
    """None for a connection that does not say within a minute which rank it is of."""
    connection.settimeout(_PATIENCE_S)
    with suppress(BadMessage, RankGone, OSError):
        link = RankLink(connection)
        connection.settimeout(None)
        return link
    return None


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
