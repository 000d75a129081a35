"""Which worker gets a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.config import Routing
from router.policies import LeastLoaded, RoundRobin, policy_for
from router.worker_load import WorkerLoad


@dataclass(eq=False)
class Worker:
    load: WorkerLoad = field(default_factory=WorkerLoad)


def test_round_robin_takes_turns_whatever_the_load() -> None:
    workers = [Worker(), Worker(), Worker()]
    workers[0].load.add(1000)
    policy = RoundRobin()
    picked = [workers.index(policy.pick(workers)) for _ in range(6)]
    assert picked == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_tokens_before_requests() -> None:
    long, short = Worker(), Worker()
    long.load.add(4000)
    for _ in range(8):
        short.load.add(10)
    assert LeastLoaded().pick([long, short]) is short


def test_equals_take_turns() -> None:
    workers = [Worker(), Worker(), Worker()]
    policy = LeastLoaded()
    assert {workers.index(policy.pick(workers)) for _ in range(3)} == {0, 1, 2}


def test_a_request_that_ended_leaves_no_load() -> None:
    worker = Worker()
    worker.load.add(10)
    worker.load.add(20)
    worker.load.remove(10)
    worker.load.remove(20)
    assert (worker.load.requests, worker.load.tokens) == (0, 0)


def test_roles_do_not_share_a_turn() -> None:
    first, second = policy_for(Routing.ROUND_ROBIN), policy_for(Routing.ROUND_ROBIN)
    workers = [Worker(), Worker()]
    assert first.pick(workers) is second.pick(workers) is workers[0]


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.integers(1, 8))
def test_least_loaded_keeps_workers_within_one_request_of_each_other(sizes: list[int], count: int) -> None:
    workers = [Worker() for _ in range(count)]
    policy = LeastLoaded()
    for size in sizes:
        policy.pick(workers).load.add(size)
    tokens = [worker.load.tokens for worker in workers]
    assert max(tokens) - min(tokens) <= max(sizes)
