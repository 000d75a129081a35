"""Sockets from rank 0 of a worker to its other ranks, which are processes of the same machine."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeVar

import numpy as np
import torch

from engine.parallel import Communicator
from kv_transfer.errors import BadMessage
from kv_transfer.message_socket import MessageSocket

_M = TypeVar("_M")
_LOOPBACK: Final = "127.0.0.1"
_PATIENCE_S: Final = 60.0
_SECRET_INTS: Final = 4


@dataclass(frozen=True, slots=True)
class Introduction:
    """First message of a rank."""

    secret: bytes
    """Secret of this listener: connections from elsewhere on the machine lack it."""
    rank: int


class RankListener:
    """On rank 0, while every other rank calls `join_rank_0`: accepts one connection of each."""

    def __init__(self, communicator: Communicator, *numbers: int) -> None:
        """Tells the other ranks the port, the secret, and `numbers` (signed, 64 bits)."""
        self._size = communicator.shard.size
        self._secret = secrets.token_bytes(8 * _SECRET_INTS)
        self._listener = socket.create_server((_LOOPBACK, 0))
        self._listener.settimeout(_PATIENCE_S)
        port: int = self._listener.getsockname()[1]
        announced = [port, *np.frombuffer(self._secret, np.int64), *numbers]
        communicator.broadcast_host(torch.tensor(announced, dtype=torch.int64))

    def __enter__(self) -> RankListener:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def accept(self, kinds: Sequence[type[_M]]) -> list[MessageSocket[_M]]:
        """Sockets to ranks 1, 2, ..., for messages of `kinds`. Other connections are closed."""
        links: dict[int, MessageSocket[_M]] = {}
        while len(links) < self._size - 1:
            connection, _ = self._listener.accept()
            rank = self._rank_at(connection)
            if rank is None:
                connection.close()
            else:
                links[rank] = MessageSocket(connection, kinds)
        return [links[rank] for rank in range(1, self._size)]

    def _rank_at(self, connection: socket.socket) -> int | None:
        """None if the other end does not introduce itself as a rank within a minute."""
        connection.settimeout(_PATIENCE_S)
        with suppress(BadMessage, OSError):
            said = MessageSocket(connection, (Introduction,)).receive()
            connection.settimeout(None)
            if said is not None and secrets.compare_digest(said.secret, self._secret):
                return said.rank
        return None


def join_rank_0(
    communicator: Communicator, kinds: Sequence[type[_M]], num_numbers: int
) -> tuple[MessageSocket[_M], list[int]]:
    """On another rank: connect to the `RankListener` of rank 0. Returns its `numbers` as well."""
    announced = torch.zeros(1 + _SECRET_INTS + num_numbers, dtype=torch.int64)
    communicator.broadcast_host(announced)
    connection = socket.create_connection((_LOOPBACK, int(announced[0])), _PATIENCE_S)
    connection.settimeout(None)
    secret = announced[1 : 1 + _SECRET_INTS].numpy().tobytes()
    MessageSocket(connection, (Introduction,)).send(Introduction(secret, communicator.shard.rank))
    return MessageSocket(connection, kinds), announced[1 + _SECRET_INTS :].tolist()
