"""Messages between the processes of one worker: frozen dataclasses over a stream socket."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from kv_transfer.codec import block, pack_one_of, unpack_one_of
from kv_transfer.errors import RankGone

M = TypeVar("M")
K = TypeVar("K")

_LENGTH: Final = struct.Struct("<I")
_PART: Final = 1 << 20


class MessageSocket(Generic[M]):
    """`send` may be called by any thread, everything else by one. Takes ownership of the connection.

    Methods raise RankGone once the other end has ended, and those that read, BadMessage.
    """

    def __init__(self, connection: socket.socket, kinds: Sequence[type[M]]) -> None:
        """`kinds`: the messages that may be sent; the same, in the same order, at both ends."""
        self._socket: Final = connection
        self._kinds: Final = tuple(kinds)
        self._sending: Final = threading.Lock()
        self._unread: Final[deque[M]] = deque()

    def send(self, message: M) -> None:
        with self._sending:
            try:
                self._socket.sendall(block(pack_one_of(self._kinds, message)))
            except OSError as error:
                raise RankGone(f"a rank has ended: {error}") from error

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether `receive` has something to read, within this time."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive(self) -> M | None:
        """Wait for the next message; None: the other end has closed the connection."""
        if self._unread:
            return self._unread.popleft()
        head = self._exactly(_LENGTH.size)
        body = head and self._exactly(_LENGTH.unpack(head)[0])
        return unpack_one_of(self._kinds, body) if body else None

    def poll(self) -> list[M]:
        """Messages that have arrived. Does not wait for others."""
        arrived = list(self._unread)
        self._unread.clear()
        while self.waits():
            arrived.append(self._next())
        return arrived

    def expect(self, kind: type[K]) -> K:
        """Wait for a message of this kind; those before it are kept for `receive` and `poll`."""
        passed: list[M] = []
        while not isinstance(message := self._next(), kind):
            passed.append(message)
        self._unread.extend(passed)
        return message

    def end(self) -> None:
        """From any thread: end the connection, which the other end and waiting methods notice."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> M:
        message = self.receive()
        if message is None:
            raise RankGone("a rank has ended")
        return message

    def _exactly(self, size: int) -> bytes:
        """Empty if the other end ends before."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), _PART))
            except OSError as error:
                raise RankGone(f"a rank has ended: {error}") from error
            if not part:
                return b""
            data += part
        return bytes(data)
