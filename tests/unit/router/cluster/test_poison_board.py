"""A request that crashed workers through one router is refused by all, for as long as by the first."""

from __future__ import annotations

from collections.abc import Callable

from router.cluster.poison_board import PoisonBoard
from router.cluster.record import ClusterRecord
from router.dispatch.admission.poison_requests import PoisonRequests
from rpc.baton.v1 import sampling_pb2
from tests.unit.router.cluster.key_values import KeyValues

PROMPT = [1, 2, 3]
SAMPLING = sampling_pb2.SamplingParams(max_tokens=4)


class Router:
    def __init__(self, store: KeyValues, clock: Callable[[], float]) -> None:
        self.requests = PoisonRequests(clock)
        self.is_silent = False
        self._record = ClusterRecord(store, "a")
        self.board = PoisonBoard(self.requests, self._ask, clock)

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
