"""KV service of a rank other than 0: writes and digests pages for rank 0."""

from __future__ import annotations

import time
from typing import Final

from kv_transfer.errors import RankGone
from kv_transfer.integrity.digest import PageDigester
from kv_transfer.sharded.wire import (
    Digest,
    DigestState,
    ForgetPeer,
    Message,
    Pool,
    RankDigests,
    RankSocket,
    Write,
)
from kv_transfer.sharded.writer import RankWriter
from kv_transfer.ticket import Peer

_BUSY_S: Final = 0.0005
_IDLE_S: Final = 0.02
_LINGER_S: Final = 1.0
"""Poll fast for this long after a command. A rank is not notified of incoming writes, but rank 0 requests
digests while they arrive."""


def serve_rank(rank_0: RankSocket, pool: Peer, writer: RankWriter, digester: PageDigester) -> None:
    """Serve until rank 0 closes the connection or ends. Afterwards the pool is not accessed any more."""
    try:
        rank_0.send(Pool(pool))
        _serve(rank_0, writer, digester)
    except RankGone:
        pass  # rank 0 has ended: this rank ends, too
    finally:
        writer.transport.close()
        rank_0.close()


def _serve(rank_0: RankSocket, writer: RankWriter, digester: PageDigester) -> None:
    busy_until = 0.0
    while True:
        busy = writer.busy or time.monotonic() < busy_until
        if rank_0.waits(_BUSY_S if busy else _IDLE_S):
            message = rank_0.receive()
            if message is None:
                return
            busy_until = time.monotonic() + _LINGER_S
            _execute(message, rank_0, writer, digester)
        # Other events are dropped: rank 0 gets lost peers and messages from its own transport.
        ended, _ = writer.poll()
        for end in ended:
            rank_0.send(end)


def _execute(message: Message, rank_0: RankSocket, writer: RankWriter, digester: PageDigester) -> None:
    match message:
        case Write():
            writer.write(message)
        case ForgetPeer(peer):
            writer.forget(peer)
        case Digest(pages, tail_tokens, group):
            rank_0.send(RankDigests(tuple(digester.digest(pages, tail_tokens, group))))
        case DigestState(first):
            rank_0.send(RankDigests(tuple(digester.digest_state(first))))
