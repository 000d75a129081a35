"""KV service of a rank other than 0: writes and digests pages for rank 0."""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from kv_transfer.integrity.digest import PageDigester
from kv_transfer.sharded.wire import (
    Digest,
    Digests,
    DigestState,
    Forget,
    Frames,
    Hello,
    Message,
    Write,
    pack,
)
from kv_transfer.sharded.writer import RankWriter
from kv_transfer.ticket import Peer

_BUSY_S: Final = 0.0005
_IDLE_S: Final = 0.02
_LINGER_S: Final = 1.0
"""Poll fast for this long after a command. A rank is not notified of incoming writes, but rank 0 requests
digests while they arrive."""


def serve_rank(connection: socket.socket, pool: Peer, writer: RankWriter, digester: PageDigester) -> None:
    """Serve until rank 0 closes the connection or ends. Afterwards the pool is not accessed any more."""
    try:
        connection.sendall(pack(Hello(pool)))
        _serve(connection, writer, digester)
    except OSError:
        pass  # rank 0 has ended: this rank ends, too
    finally:
        writer.transport.close()
        connection.close()


def _serve(connection: socket.socket, writer: RankWriter, digester: PageDigester) -> None:
    frames = Frames()
    busy_until = 0.0
    while True:
        busy = writer.busy or time.monotonic() < busy_until
        if select.select([connection], [], [], _BUSY_S if busy else _IDLE_S)[0]:
            data = connection.recv(1 << 16)
            if not data:
                return
            busy_until = time.monotonic() + _LINGER_S
            for message in frames.feed(data):
                _execute(message, connection, writer, digester)
        # Other events are dropped: rank 0 gets lost peers and messages from its own transport.
        ended, _ = writer.poll()
        for end in ended:
            connection.sendall(pack(end))


def _execute(message: Message, connection: socket.socket, writer: RankWriter, digester: PageDigester) -> None:
    match message:
        case Write():
            writer.write(message)
        case Forget(peer):
            writer.forget(peer)
        case Digest(pages, tail_tokens):
            connection.sendall(pack(Digests(tuple(digester.digest(pages, tail_tokens)))))
        case DigestState(first):
            connection.sendall(pack(Digests(tuple(digester.digest_state(first)))))
