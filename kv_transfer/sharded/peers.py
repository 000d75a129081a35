"""How a worker of several ranks appears to its peers: the metadata of its `Peer` lists those of its ranks."""

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
    """In order of rank. What they have in common with their worker is not repeated."""
    return _HEADER.pack(_MAGIC, len(ranks)) + b"".join(pack_rank(rank) for rank in ranks)


def ranks_of(worker: Peer) -> list[Peer]:
    """Raises PeerUnreachable if the worker was not made for handoffs by ranks."""
    reader = Reader(worker.metadata)
    try:
        magic, count = reader.fields(_HEADER)
        ranks = [read_rank(reader, worker) for _ in range(count)]
        reader.require_end()
    except BadMessage as error:
        raise PeerUnreachable(f"{worker.name} does not say where its ranks are: {error}") from error
    if magic != _MAGIC:
        raise PeerUnreachable(f"{worker.name} hands KV over as one rank; this worker does by ranks")
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
