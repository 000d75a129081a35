"""Messages between the processes of one worker: frozen dataclasses over a stream socket."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

from kv_transfer.codec import block, pack_one_of, unpack_one_of

M = TypeVar("M")

_LENGTH: Final = struct.Struct("<I")
_PART: Final = 1 << 20


class MessageSocket(Generic[M]):
    """`send` may be called by any thread, `receive` by one. Takes ownership of the connection."""

    def __init__(self, connection: socket.socket, kinds: Sequence[type[M]]) -> None:
        """`kinds`: the messages that may be sent; the same, in the same order, at both ends."""
        self._socket: Final = connection
        self._kinds: Final = tuple(kinds)
        self._sending: Final = threading.Lock()

    def send(self, message: M) -> None:
        """Raises OSError when the other end has ended."""
        with self._sending:
            self._socket.sendall(block(pack_one_of(self._kinds, message)))

    def waits(self, timeout_s: float = 0.0) -> bool:
        """Whether `receive` has something to read, within this time."""
        return bool(select.select([self._socket], [], [], timeout_s)[0])

    def receive(self) -> M | None:
        """Waits for the next message; None: the other end has ended. Raises BadMessage, and OSError."""
        head = self._exactly(_LENGTH.size)
        body = head and self._exactly(_LENGTH.unpack(head)[0])
        return unpack_one_of(self._kinds, body) if body else None

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        """Empty if the other end ends before."""
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), _PART))
            if not part:
                return b""
            data += part
        return bytes(data)
