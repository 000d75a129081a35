"""The copier of all ranks of a worker, with pipes to ranks that the tests play."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator

import pytest

from engine.kv.tiers.jobs import FOUND, Demote, Done, Forget, Job, Load, Remove, Save
from worker.tensor_parallel.rank_messages import KINDS, DoneAnswer, Opened, RankSocket, StopRank
from worker.tensor_parallel.rank_tiers import RankedCopier

KEYS = [bytes([number]) * 34 for number in range(3)]


class Own:
    """The copier of rank 0."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.dones: list[Done] = []

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self) -> list[Done]:
        dones, self.dones = self.dones, []
        return dones


class Ranks:
    def __init__(self) -> None:
        self.own = Own()
        pairs = [socket.socketpair() for _ in range(2)]
        self.sockets = [theirs for _, theirs in pairs]
        self.theirs = [RankSocket(theirs, KINDS) for theirs in self.sockets]
        self.heard = threading.Semaphore(0)
        self.copier = RankedCopier(
            self.own, [RankSocket(ours, KINDS) for ours, _ in pairs], self.heard.release
        )

    def answer(self, rank: int, done: Done) -> list[Done]:
        """What rank 0 learns when a rank says this."""
        if rank == 0:
            self.own.dones.append(done)
        else:
            self.theirs[rank - 1].send(DoneAnswer.of(done))
            assert self.heard.acquire(timeout=30)
        return self.copier.poll()

    def jobs(self, rank: int) -> list[Job]:
        jobs: list[Job] = []
        while select.select([self.sockets[rank - 1]], [], [], 0)[0]:
            job = self.theirs[rank - 1].receive()
            assert job is not None
            assert not isinstance(job, (DoneAnswer, Opened, StopRank))
            jobs.append(job)
        return jobs


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    running = Ranks()
    running.copier.start()
    yield running
    for link in running.theirs:
        link.close()
    running.copier.stop()


def test_a_copy_is_made_when_all_ranks_have_made_theirs(ranks: Ranks) -> None:
    job = Demote(1, (4, 5), (0, 1))
    ranks.copier.submit(job)
    assert ranks.own.jobs == ranks.jobs(1) == ranks.jobs(2) == [job]
    assert ranks.answer(1, Done(1, (10, 11))) == []
    assert ranks.answer(0, Done(1, (20, 21))) == []
    assert ranks.answer(2, Done(1, (30, 31))) == [
        Done(1, (20 | 10 << 64 | 30 << 128, 21 | 11 << 64 | 31 << 128))
    ]


def test_any_other_digest_on_any_rank_is_another_digest(ranks: Ranks) -> None:
    joined = set()
    for number, digests in enumerate([(1, 2, 3), (2, 1, 3), (1, 2, 4), (1, 3, 3), (0, 2, 3)], 1):
        ranks.answer(0, Done(number, digests[:1]))
        ranks.answer(1, Done(number, digests[1:2]))
        ((done,)) = ranks.answer(2, Done(number, digests[2:]))
        joined.add(done.digests)
    assert len(joined) == 5


def test_a_file_that_one_rank_lacks_is_a_miss(ranks: Ranks) -> None:
    ranks.copier.submit(Load(7, KEYS[0], 5, slot=1))
    ranks.answer(0, Done(7, (1,)))
    ranks.answer(1, Done(7, (None,)))
    assert ranks.answer(2, Done(7, (3,))) == [Done(7, (None,))]


def test_each_rank_saves_its_own_digest_and_none_if_one_fails(ranks: Ranks) -> None:
    digest = 1 | 2 << 64 | 3 << 128
    ranks.copier.submit(Save(2, KEYS[0], 5, digest, slot=1))
    assert ranks.own.jobs == [Save(2, KEYS[0], 5, 1, slot=1)]
    assert ranks.jobs(1) == [Save(2, KEYS[0], 5, 2, slot=1)]
    assert ranks.jobs(2) == [Save(2, KEYS[0], 5, 3, slot=1)]
    ranks.answer(0, Done(2, (1,)))
    ranks.answer(1, Done(2, (None,)))
    assert ranks.answer(2, Done(2, (3,))) == [Done(2, (None,))]
    removed = [Remove(KEYS[0], 5)]
    assert ranks.own.jobs[1:] == ranks.jobs(1) == ranks.jobs(2) == removed


def test_only_files_of_all_ranks_are_found_and_the_others_removed(ranks: Ranks) -> None:
    first, second, third = ((key, 5) for key in KEYS)
    assert ranks.copier.common([[third, first], [first, second, third], [second, third]]) == [third]
    assert ranks.own.jobs == [Remove(*first)]
    assert ranks.jobs(1) == [Remove(*first), Remove(*second)]
    assert ranks.jobs(2) == [Remove(*second)]


def test_files_of_others_are_found_when_every_rank_has_found_its_part(ranks: Ranks) -> None:
    first, second = ((key, 5) for key in KEYS[:2])
    assert ranks.answer(0, Done(FOUND, (), found=(first,))) == []
    assert ranks.answer(1, Done(FOUND, (), found=(second, first))) == []
    assert ranks.answer(2, Done(FOUND, (), found=(first, second))) == [Done(FOUND, (), found=(first,))]
    assert ranks.answer(0, Done(FOUND, (), found=(second,))) == [Done(FOUND, (), found=(second,))]


def test_a_part_that_comes_late_is_late_for_all(ranks: Ranks) -> None:
    ranks.copier.submit(Load(7, KEYS[0], 5, slot=1))
    ranks.answer(0, Done(7, (1,)))
    ranks.answer(1, Done(7, (None,), late=True))
    assert ranks.answer(2, Done(7, (3,))) == [Done(7, (None,), late=True)]
    assert ranks.own.jobs[1:] == ranks.jobs(1)[1:] == ranks.jobs(2)[1:] == [Forget(KEYS[0], 5)]
