"""Rank 0 waits for the ranks of its worker, whatever else connects to its port."""

from __future__ import annotations

import socket
import struct

from kv_transfer.message_socket import MessageSocket
from kv_transfer.sharded.wire import KINDS, Hello, Message
from kv_transfer.ticket import Peer
from tests.engine_config import engine_config
from worker.config import WorkerConfig, WorkerRole
from worker.tensor_parallel import rank_kv

EPOCH = 5


def test_neither_garbage_nor_strangers_end_the_start() -> None:
    config = WorkerConfig(
        worker_id="decode-0", role=WorkerRole.DECODE, model="m", engine=engine_config(), transport="loopback"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        others = [socket.create_connection(listener.getsockname()) for _ in range(5)]
        others[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        others[0].shutdown(socket.SHUT_WR)
        others[1].close()
        others[2].sendall(struct.pack("<I", 3) + b"abc" + struct.pack(">I", 3) + b"abc")
        others[2].shutdown(socket.SHUT_WR)
        _say(others[3], "decode-0-0000000000000000.1")
        _say(others[4], f"decode-0-{EPOCH:016x}.1")
        [link] = rank_kv._accept(listener, config, EPOCH, 2)
    assert link.pool.name == f"decode-0-{EPOCH:016x}.1"


def _say(connection: socket.socket, name: str) -> None:
    peer = Peer(name, EPOCH, b"", 0, 4096, 1, 0, "")
    socket_of_messages: MessageSocket[Message] = MessageSocket(connection, KINDS)
    socket_of_messages.send(Hello(peer))
