"""What one router has found out about a request or a worker is known to all, for as long as to the first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

from router.cluster.fault_board import FaultBoard
from router.cluster.record import ClusterRecord
from router.dispatch.admission.poison_requests import PoisonRequests
from router.dispatch.workers.liveness import CircuitState
from router.dispatch.workers.member import Member
from rpc.baton.v1 import sampling_pb2
from tests.unit.router.cluster.key_values import KeyValues

PROMPT = [1, 2, 3]
SAMPLING = sampling_pb2.SamplingParams(max_tokens=4)
EPOCH = 7


class Router:
    def __init__(self, store: KeyValues, clock: Callable[[], float], name: str = "") -> None:
        self.name = name
        self.requests = PoisonRequests(clock)
        self.is_silent = False
        self.worker = Member(Mock(worker_id="decode-0"), asyncio.Event(), epoch=EPOCH)
        self.reconsidered = 0
        self._record = ClusterRecord(store, "a")
        self.board = FaultBoard(self.requests, self, self._ask, clock)

    @property
    def circuit(self) -> CircuitState:
        return self.worker.breaker.state

    def members(self) -> list[Member]:
        return [self.worker]

    async def reconsider(self) -> None:
        self.reconsidered += 1

    async def _ask(self, use: Callable[[ClusterRecord], object]) -> object:
        if self.is_silent:
            raise TimeoutError
        return use(self._record)

    def find(self) -> str | None:
        return self.requests.find(PROMPT, SAMPLING)


async def test_every_router_refuses_what_crashed_workers_through_one_of_them() -> None:
    store, now = KeyValues(), [0.0]
    first, second = (Router(store, lambda: now[0]) for _ in range(2))
    first.requests.add("bad", PROMPT, SAMPLING)
    await first.board.exchange()
    assert second.find() is None
    now[0] = 2.0
    await second.board.exchange()
    assert second.find() == "bad"
    assert second.requests.find([1, 2], SAMPLING) is None
    now[0] = 60.0
    assert first.find() is None
    assert second.find() is None, "it is refused for longer than by the first router"
    await second.board.exchange()
    assert second.find() is None
    assert not store.values


async def test_what_ray_did_not_take_is_told_later() -> None:
    store = KeyValues()
    first, second = (Router(store, lambda: 0.0) for _ in range(2))
    first.is_silent = True
    first.requests.add("bad", PROMPT, SAMPLING)
    try:
        await first.board.exchange()
    except TimeoutError:
        first.is_silent = False
    await first.board.exchange()
    await second.board.exchange()
    assert second.find() == "bad"


def fail_probes(router: Router) -> None:
    while router.circuit is not CircuitState.OPEN:
        router.worker.breaker.probe_failed()


async def test_every_router_suspects_a_worker_that_failed_the_probes_of_one_of_them() -> None:
    store, now = KeyValues(), [0.0]
    first, second = (Router(store, lambda: now[0], name) for name in ("first", "second"))
    fail_probes(first)
    await first.board.exchange()
    await second.board.exchange()
    assert second.circuit is CircuitState.SUSPECT, "its own probe decides"
    assert second.reconsidered == 1
    second.worker.breaker.probe_succeeded()
    for _ in range(2):
        await second.board.exchange()
        await first.board.exchange()
    assert second.circuit is CircuitState.CLOSED, "one router's trouble is told once"
    first.worker.breaker.probe_succeeded()
    await first.board.exchange()
    assert not store.values
    fail_probes(first)
    await second.board.exchange()
    await first.board.exchange()
    await second.board.exchange()
    assert second.circuit is CircuitState.SUSPECT


async def test_another_process_of_the_worker_is_not_suspect() -> None:
    store = KeyValues()
    first, second = (Router(store, lambda: 0.0, name) for name in ("first", "second"))
    fail_probes(first)
    second.worker.epoch = EPOCH + 1
    await first.board.exchange()
    await second.board.exchange()
    assert second.circuit is CircuitState.CLOSED


async def test_what_a_router_knew_that_has_ended_is_forgotten() -> None:
    store, now = KeyValues(), [0.0]
    first, second = (Router(store, lambda: now[0], name) for name in ("first", "second"))
    fail_probes(first)
    await first.board.exchange()
    await second.board.exchange()
    assert store.values
    now[0] = 11.0
    await second.board.exchange()
    assert not store.values


async def test_routers_whose_clocks_differ_hear_of_each_others_circuits() -> None:
    store, now = KeyValues(), [0.0]
    late = Router(store, lambda: now[0] - 60.0, "late")
    early = Router(store, lambda: now[0], "early")
    fail_probes(late)
    for second in range(30):
        now[0] = float(second)
        await late.board.exchange()
        await early.board.exchange()
        assert store.values, "the early router took the other one for gone"
    assert early.circuit is CircuitState.SUSPECT
