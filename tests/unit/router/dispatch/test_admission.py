"""Admission of sequences to workers."""

from __future__ import annotations

import asyncio
import math
from unittest.mock import Mock

import pytest

from engine.config import PATIENCE
from router.dispatch.admission.admission_queue import AdmissionGate, AdmissionGrant, AdmissionRequest
from router.dispatch.failures import pages_quarantined
from router.dispatch.routing.route import Route
from router.errors import Unavailable


class Pool:
    """Decode workers as one number of free tokens: claims take from it, `free` adds to it."""

    def __init__(self, room: int, window: int = 100) -> None:
        self.room = room
        self.most = math.inf
        self.admission = AdmissionGate(self.check, lambda: window)

    def check(self, tokens: int) -> None:
        if tokens > self.most:
            raise pages_quarantined(tokens)

    def place(self, tokens: int) -> Route | None:
        self.check(tokens)
        if tokens > self.room:
            return None
        self.room -= tokens
        return Route(Mock(), is_local=False, why="test", claim=Claim(self, tokens))

    def request(self, tokens: int, *, is_retry: bool = False) -> AdmissionRequest:
        return AdmissionRequest(tokens, lambda: self.place(tokens), is_retry)

    def free(self, tokens: int) -> None:
        self.room += tokens
        self.admission.admit_waiting()


class Claim:
    def __init__(self, pool: Pool, tokens: int) -> None:
        self._pool = pool
        self._tokens = tokens

    def end(self) -> bool:
        tokens, self._tokens = self._tokens, 0
        self._pool.room += tokens
        return tokens > 0


def try_admit(pool: Pool, tokens: int, *, is_retry: bool = False) -> AdmissionGrant | None:
    return pool.admission.try_admit(pool.request(tokens, is_retry=is_retry))


async def waiting(
    pool: Pool, tokens: int, patience_s: float = math.inf, *, is_retry: bool = False
) -> asyncio.Task[AdmissionGrant]:
    assert try_admit(pool, tokens, is_retry=is_retry) is None
    task = asyncio.create_task(pool.admission.wait(pool.request(tokens, is_retry=is_retry), patience_s))
    await asyncio.sleep(0)
    return task


async def who_is_in(*tasks: asyncio.Task[AdmissionGrant]) -> list[bool]:
    await asyncio.sleep(0)
    return [task.done() for task in tasks]


async def test_a_sequence_that_fits_is_admitted_at_once_and_keeps_its_room() -> None:
    pool = Pool(10)
    turn = try_admit(pool, 6)
    assert turn is not None
    assert pool.room == 4
    turn.close()
    turn.close()
    assert pool.room == 10


async def test_a_sequence_that_does_not_fit_waits_for_room() -> None:
    pool = Pool(5)
    task = await waiting(pool, 8)
    pool.free(2)
    assert await who_is_in(task) == [False]
    pool.free(1)
    assert await who_is_in(task) == [True]
    assert pool.room == 0
    assert len(pool.admission) == 0


async def test_an_unused_claim_admits_the_next_sequence() -> None:
    pool = Pool(8)
    turn = try_admit(pool, 8)
    assert turn is not None
    task = await waiting(pool, 8)
    turn.close()
    assert await who_is_in(task) == [True]


async def test_shorter_sequences_pass_a_long_one_without_room_up_to_a_bound() -> None:
    pool = Pool(5)
    large = await waiting(pool, 8)
    for _ in range(int(PATIENCE) * 2):
        small = await waiting(pool, 4)
        assert await who_is_in(large, small) == [False, True]
        small.result().close()
    last = await waiting(pool, 4)
    assert await who_is_in(large, last) == [False, False]
    pool.free(7)
    assert await who_is_in(large, last) == [True, True]


async def test_a_sequence_does_not_pass_one_of_its_length() -> None:
    pool = Pool(5)
    first, second, third = await waiting(pool, 8), await waiting(pool, 6), await waiting(pool, 6)
    pool.free(1)
    assert await who_is_in(first, second, third) == [False, True, False]


async def test_a_sequence_that_no_worker_can_hold_is_refused_at_once_wherever_it_waits() -> None:
    pool = Pool(5)
    large = await waiting(pool, 8)
    pool.most = 7  # the other pages are in quarantine
    with pytest.raises(Unavailable):
        try_admit(pool, 9)
    small = await waiting(pool, 5)
    with pytest.raises(Unavailable):
        await large
    assert await who_is_in(small) == [True]
    assert len(pool.admission) == 0


async def test_a_timed_out_sequence_is_refused_and_admits_later_ones() -> None:
    pool = Pool(5)
    large = await waiting(pool, 8, patience_s=0.01)
    small = await waiting(pool, 1)
    with pytest.raises(TimeoutError):
        await large
    assert await who_is_in(small) == [True]
    assert len(pool.admission) == 0


async def test_a_cancelled_sequence_admits_later_ones() -> None:
    pool = Pool(5)
    large, small = await waiting(pool, 8), await waiting(pool, 1)
    large.cancel()
    await asyncio.wait([large])
    assert await who_is_in(small) == [True]


async def test_a_sequence_cancelled_while_it_is_admitted_releases_its_grant() -> None:
    pool = Pool(5)
    task = await waiting(pool, 8)
    pool.free(5)  # granted, and not yet resumed
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert pool.room == 10


async def test_a_sequence_cancelled_just_before_room_is_made_takes_none() -> None:
    pool = Pool(5)
    first, second = await waiting(pool, 8), await waiting(pool, 8)
    first.cancel()
    pool.free(5)
    await asyncio.wait([first])
    assert await who_is_in(second) == [True]
    assert pool.room == 2
    assert len(pool.admission) == 0


async def test_retries_are_admitted_before_new_sequences() -> None:
    pool = Pool(0)
    new, retry = await waiting(pool, 4), await waiting(pool, 4, is_retry=True)
    pool.free(4)
    assert await who_is_in(new, retry) == [False, True]
    pool.free(4)
    assert await who_is_in(new) == [True]


async def test_retries_are_limited_to_a_window_of_tokens() -> None:
    pool = Pool(1000, window=100)
    first, second = try_admit(pool, 60, is_retry=True), try_admit(pool, 40, is_retry=True)
    assert first is not None
    assert second is not None
    third = await waiting(pool, 30, is_retry=True)
    new = await waiting(pool, 1)  # who is new does not pass those who lost their worker
    second.computed()
    second.close()
    assert await who_is_in(third, new) == [True, True]
    first.close()


async def test_a_retry_larger_than_the_window_is_admitted_alone() -> None:
    pool = Pool(1000, window=100)
    first = try_admit(pool, 500, is_retry=True)
    assert first is not None
    second = await waiting(pool, 1, is_retry=True)
    first.computed()
    assert await who_is_in(second) == [True]


async def test_new_sequences_do_not_count_as_retries() -> None:
    pool = Pool(1000, window=100)
    for _ in range(10):
        assert try_admit(pool, 50) is not None
