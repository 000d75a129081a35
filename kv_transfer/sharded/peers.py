"""The `Peer` of a worker with several ranks: its metadata contains the peers of its ranks."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kv_transfer.errors import BadMessage, PeerUnreachable
from kv_transfer.handoff.binary import Reader, block
from kv_transfer.ticket import Peer

__all__ = ["pack_rank", "pack_ranks", "ranks_of", "read_rank"]

_MAGIC: Final = b"BKVRANKS"
_HEADER: Final = struct.Struct("<8sH")
_RANK: Final = struct.Struct("<QQQI")


def pack_ranks(ranks: Sequence[Peer]) -> bytes:
    """Metadata of a worker from its ranks, in order. Fields that equal the worker's are left out."""
    return _HEADER.pack(_MAGIC, len(ranks)) + b"".join(pack_rank(rank) for rank in ranks)


def ranks_of(worker: Peer) -> list[Peer]:
    """The ranks of a worker. Raises PeerUnreachable if its metadata does not contain them."""
    reader = Reader(worker.metadata)
    try:
        magic, count = reader.fields(_HEADER)
        ranks = [read_rank(reader, worker) for _ in range(count)]
        reader.require_end()
    except BadMessage as error:
        raise PeerUnreachable(f"the metadata of {worker.name} has no valid list of ranks: {error}") from error
    if magic != _MAGIC:
        raise PeerUnreachable(f"{worker.name} transfers KV as one rank, this worker by ranks")
    return ranks


def pack_rank(rank: Peer) -> bytes:
    fixed = _RANK.pack(rank.base_address, rank.page_bytes, rank.num_pages, rank.device_index)
    return fixed + block(rank.name.encode()) + block(rank.metadata)


def read_rank(reader: Reader, worker: Peer) -> Peer:
    base_address, page_bytes, num_pages, device_index = reader.fields(_RANK)
    return replace(
        worker,
        base_address=base_address,
        page_bytes=page_bytes,
        num_pages=num_pages,
        device_index=device_index,
        name=reader.text(),
        metadata=reader.block(),
    )
