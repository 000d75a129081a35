"""Rank 0 finds the other ranks of its worker, whatever else connects to its port, and notices their end."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor

from engine.model_config.shard import Shard
from engine.parallel.communicator import SingleRank
from kv_transfer.errors import RankGone
from kv_transfer.message_socket import MessageSocket
from worker.tensor_parallel.rank_sockets import Introduction, RankListener, join_rank_0


@dataclass(frozen=True, slots=True)
class Number:
    value: int


@dataclass(frozen=True, slots=True)
class Word:
    value: str


KINDS: tuple[type[Number | Word], ...] = (Number, Word)


@dataclass
class Ranks:
    """What rank 0 broadcasts, for ranks that are threads of this process."""

    size: int
    said: list[queue.Queue[Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.said = [queue.Queue() for _ in range(self.size)]

    def rank(self, rank: int) -> Any:
        return _Rank(self, rank)


class _Rank(SingleRank):
    def __init__(self, ranks: Ranks, rank: int) -> None:
        self.shard = Shard(rank, ranks.size)
        self._said = ranks.said

    def broadcast_host(self, numbers: Tensor) -> None:
        if self.shard.rank == 0:
            for said in self._said:
                said.put(numbers.clone())
        else:
            numbers.copy_(self._said[self.shard.rank].get(timeout=30))


def test_ranks_are_in_order_and_get_the_numbers() -> None:
    ranks = Ranks(3)
    heard: dict[int, list[int]] = {}

    def join(rank: int) -> None:
        link, heard[rank] = join_rank_0(ranks.rank(rank), KINDS, 2)
        link.send(Number(rank))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 1)]
    with RankListener(ranks.rank(0), -5, 1 << 62) as listener:
        for thread in threads:
            thread.start()
        links = listener.accept(KINDS)
    assert [link.expect(Number) for link in links] == [Number(1), Number(2)]
    for thread in threads:
        thread.join()
    assert heard == {1: [-5, 1 << 62], 2: [-5, 1 << 62]}


def test_neither_garbage_nor_strangers_end_the_start() -> None:
    ranks = Ranks(2)
    with RankListener(ranks.rank(0)) as listener:
        address = ("127.0.0.1", int(ranks.said[1].queue[0][0]))
        others = [socket.create_connection(address) for _ in range(4)]
        others[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        others[0].shutdown(socket.SHUT_WR)
        others[1].close()
        others[2].sendall(struct.pack("<I", 3) + b"abc" + struct.pack(">I", 3) + b"abc")
        others[2].shutdown(socket.SHUT_WR)
        MessageSocket(others[3], (Introduction,)).send(Introduction(bytes(32), 1))
        theirs, _ = join_rank_0(ranks.rank(1), KINDS, 0)
        [link] = listener.accept(KINDS)
    link.send(Word("hello"))
    assert theirs.receive() == Word("hello")


def connected() -> tuple[MessageSocket[Number | Word], MessageSocket[Number | Word]]:
    here, there = socket.socketpair()
    return MessageSocket(here, KINDS), MessageSocket(there, KINDS)


def test_messages_before_the_expected_one_are_kept_in_order() -> None:
    here, there = connected()
    for message in (Number(1), Number(2), Word("a"), Number(3)):
        there.send(message)
    assert here.expect(Word) == Word("a")
    assert here.poll() == [Number(1), Number(2), Number(3)]
    assert here.poll() == []


def test_the_end_of_a_rank_is_an_error_of_every_call_that_needs_it() -> None:
    here, there = connected()
    there.send(Number(1))
    there.close()
    with pytest.raises(RankGone):
        here.expect(Word)
    with pytest.raises(RankGone):
        here.poll()
    with pytest.raises(RankGone):
        here.send(Number(2))
