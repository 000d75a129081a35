"""What a worker reports of the handoffs that wait at it."""

from __future__ import annotations

from unittest.mock import Mock

from engine.config import SchedulerConfig
from engine.core.request import Request
from engine.core.weights import WeightsIdentity
from engine.kv.cache.pages import PageCounts
from engine.kv.manager.kv_manager import KVManager
from engine.kv.manager.reservations import Reservation
from engine.loop.adapters import Adapters
from engine.loop.pauses.laps import Laps
from engine.loop.stats import EngineStats
from engine.sched.queue.adapter_slots import AdapterSlots
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.worker.handlers import Handled, handled

PAGE = 16
COUNTS = PageCounts(free=40, held=53, cached=0, in_flight=0, quarantined=7, leaving=0, total=100)
STATS = EngineStats(
    waiting=1,
    starved=1,
    waits_for=None,
    running=7,
    waiting_tokens=0,
    available_pages=40,
    pages=COUNTS,
    state_slots=None,
    steps=0,
    preemptions=0,
    prompt_tokens=0,
    generated_tokens=0,
    cache_hit_tokens=0,
)


class Engine:
    """Has pages for this number of reservations."""

    def __init__(self, room: int) -> None:
        self.config = Mock(page_size=PAGE, scheduler=SchedulerConfig(max_waiting_requests=100))
        self.kv = KVManager(100, PAGE, radix_cache=False)
        self._room = room
        self.grammars = Mock()
        self.adapters = Adapters(None, None, AdapterSlots(0), lambda: ())
        self.laps = Laps()
        self.weights = WeightsIdentity("")

    def stats(self) -> EngineStats:
        return STATS

    def abort(self, request_id: int) -> bool:
        return False

    def state_pages(self, request: Request) -> tuple[int, ...]:
        return ()

    def reserve(self, request: Request, room: int) -> Reservation | None:
        if not self._room:
            return None
        self._room -= 1
        return Reservation(request, 0, [])


def worker_with(room: int) -> Handled:
    return handled(Engine(room), Mock(sessions=()))


def reserve(worker: Handled, request_id: int, tokens: int) -> None:
    sampling = sampling_pb2.SamplingParams(max_tokens=5)
    work = worker_pb2.Work(request_id=request_id, prompt=[1] * tokens, sampling=sampling)
    reserve = worker_pb2.Reserve(work=work, timeout_s=60.0)
    worker.handler.handle(Mock(), worker_pb2.Command(reserve=reserve), 0.0)


def test_handoffs_that_have_pages_and_those_that_wait_for_some_are_reported() -> None:
    worker = worker_with(room=1)
    for request_id, tokens in enumerate((100, 17, 16)):
        reserve(worker, request_id, tokens)
    worker.handler.tick(0.0)
    load = worker.handler.load()
    assert (load.running, load.waiting, load.free_pages, load.total_pages) == (7, 1, 40, 100)
    assert load.quarantined_pages == 7
    assert (load.incoming, load.queued_handoffs, load.queued_pages) == (1, 2, 2 + 1)


def test_a_handoff_aborted_while_it_waited_is_not_reported() -> None:
    worker = worker_with(room=0)
    reserve(worker, 1, 100)
    reserve(worker, 2, 100)
    worker.handler.handle(Mock(), worker_pb2.Command(abort=worker_pb2.Abort(request_id=1)), 0.0)
    assert worker.handler.load().queued_handoffs == 1


def test_every_command_is_counted_for_the_session_it_came_over() -> None:
    worker, session = worker_with(room=0), Mock()
    worker.handler.handle(session, worker_pb2.Command(abort=worker_pb2.Abort(request_id=1)), 0.0)
    worker.outbox.handled.assert_called_once_with(session)
