"""Rank 0's end of the socket to another rank of its worker."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Sequence

from kv_transfer.errors import RankGone
from kv_transfer.message_socket import MessageSocket
from kv_transfer.sharded.wire import KINDS, Digest, Digests, DigestState, Ended, Forget, Hello, Message, Write
from kv_transfer.ticket import Peer


class RankLink:
    """Every method raises RankGone once the rank's process has ended; the worker must then exit."""

    def __init__(self, connection: socket.socket) -> None:
        """Waits for the rank's Hello. Takes ownership of `connection`."""
        self._socket = MessageSocket(connection, KINDS)
        self._unread: deque[Message] = deque()
        hello = self._wait_for(Hello)
        assert isinstance(hello, Hello)
        self.pool = hello.rank
        """The rank's own pool, as a peer would reach it."""

    def write(self, write: Write) -> None:
        self._send(write)

    def forget(self, peer: Peer) -> None:
        self._send(Forget(peer))

    def poll(self) -> list[Ended]:
        """Writes that have ended since the last call. Does not wait."""
        while self._socket.waits():
            self._receive()
        ended = [message for message in self._unread if isinstance(message, Ended)]
        self._unread.clear()
        return ended

    def request_digests(self, pages: Sequence[int], tail_tokens: int) -> None:
        self._send(Digest(tuple(pages), tail_tokens))

    def request_state_digests(self, first: int) -> None:
        self._send(DigestState(first))

    def digests(self) -> tuple[int, ...]:
        """Waits for the result of `request_digests` or `request_state_digests`."""
        answer = self._wait_for(Digests)
        assert isinstance(answer, Digests)
        return answer.digests

    def close(self) -> None:
        """Close the socket; the rank then closes its transport."""
        self._socket.close()

    def _send(self, message: Message) -> None:
        try:
            self._socket.send(message)
        except OSError as error:
            raise RankGone(f"a rank has ended: {error}") from error

    def _wait_for(self, kind: type[Message]) -> Message:
        while True:
            for message in self._unread:
                if isinstance(message, kind):
                    self._unread.remove(message)
                    return message
            self._receive()

    def _receive(self) -> None:
        try:
            message = self._socket.receive()
        except OSError as error:
            raise RankGone(f"a rank has ended: {error}") from error
        if message is None:
            raise RankGone("a rank has ended")
        self._unread.append(message)
