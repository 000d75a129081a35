"""The `Peer` of a worker with several ranks: its metadata contains the peers of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kv_transfer.codec import pack, unpack
from kv_transfer.errors import BadMessage, PeerUnreachable
from kv_transfer.ticket import Peer

_MAGIC: Final = b"BKVRANKS"


@dataclass(frozen=True, slots=True)
class _Ranks:
    peers: tuple[Peer, ...]


def pack_ranks(ranks: Sequence[Peer]) -> bytes:
    """Metadata of a worker from its ranks, in order."""
    return _MAGIC + pack(_Ranks(tuple(ranks)))


def ranks_of(worker: Peer) -> list[Peer]:
    """The ranks of a worker. Raises PeerUnreachable if its metadata does not contain them."""
    if not worker.metadata.startswith(_MAGIC):
        raise PeerUnreachable(f"{worker.name} transfers KV as one rank, this worker by ranks")
    try:
        ranks = unpack(_Ranks, worker.metadata[len(_MAGIC) :]).peers
    except BadMessage as error:
        raise PeerUnreachable(f"the metadata of {worker.name} has no valid list of ranks: {error}") from error
    return [replace(rank, epoch=worker.epoch, layout_hash=worker.layout_hash) for rank in ranks]
