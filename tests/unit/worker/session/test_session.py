"""What leaves a worker over one router's stream."""

from __future__ import annotations

import math
import threading
from typing import Any, cast

import pytest

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.jobs import Job
from worker.session.outbox import Outbox
from worker.session.router_session import RouterLate, RouterSession, SessionBroken


class Recorder:
    def __init__(self) -> None:
        self.batches: list[worker_pb2.EventBatch] = []

    def send(self, batch: worker_pb2.EventBatch) -> None:
        self.batches.append(batch)


def job(id: int, session: Recorder) -> Job:
    request = Request(id=id, prompt=[1], sampling=SamplingParams(max_tokens=1), num_cached=3)
    return Job(request, cast(Any, session), 0.0, math.inf, sampling_pb2.SamplingParams())


async def test_batches_come_out_in_the_order_in_which_threads_sent_them() -> None:
    session = RouterSession()

    def send() -> None:
        for step in range(100):
            session.send(worker_pb2.EventBatch(step=step))
        session.close()

    threading.Thread(target=send).start()
    assert [batch.step async for batch in session.batches()] == list(range(100))


async def test_a_failed_session_delivers_earlier_batches_and_then_the_reason() -> None:
    session = RouterSession()
    session.send(worker_pb2.EventBatch(step=1))
    session.fail("the engine failed")
    batches = session.batches()
    assert (await anext(batches)).step == 1
    with pytest.raises(SessionBroken, match="the engine failed"):
        await anext(batches)


async def test_an_idle_session_sends_heartbeats_and_loses_no_event() -> None:
    session = RouterSession()
    batches = session.batches()
    for _ in range(2):
        assert not (await anext(batches)).step
    session.send(worker_pb2.EventBatch(step=1))
    while not (batch := await anext(batches)).step:
        pass
    assert batch.step == 1


async def test_a_router_that_does_not_read_is_cut_off() -> None:
    session = RouterSession()
    for _ in range(5000):
        session.send(worker_pb2.EventBatch())
    with pytest.raises(RouterLate, match="unread"):
        async for _ in session.batches():
            pass


def test_a_step_makes_one_batch_for_each_session_with_events() -> None:
    outbox, here, there = Outbox(), Recorder(), Recorder()
    for session in (here, there):
        outbox.open(cast(Any, session))
    outbox.flush(0)
    for id in (1, 2):
        outbox.started(job(id, here), queued_s=0.5)
    outbox.flush(1)
    assert [len(batch.started) for batch in here.batches] == [0, 2]
    assert [batch.step for batch in here.batches] == [0, 1]
    assert len(there.batches) == 1  # the greeting, with the load


def test_every_session_gets_changes_of_load() -> None:
    outbox, session = Outbox(), Recorder()
    outbox.open(cast(Any, session))
    for step, running in enumerate([1, 1, 2]):
        outbox.report_load(worker_pb2.Load(running=running))
        outbox.flush(step)
    assert [batch.load.running for batch in session.batches] == [1, 2]


def test_events_for_an_ended_session_are_dropped() -> None:
    outbox, session = Outbox(), Recorder()
    outbox.open(cast(Any, session))
    outbox.flush(0)
    outbox.close(cast(Any, session))
    outbox.started(job(1, session), queued_s=0.0)
    outbox.report_load(worker_pb2.Load(running=5))
    outbox.flush(1)
    assert len(session.batches) == 1


def test_a_report_has_the_number_of_the_sessions_commands_that_it_covers() -> None:
    outbox, mine, other = Outbox(), Recorder(), Recorder()
    for session in (mine, other):
        outbox.open(cast(Any, session))
    load = worker_pb2.Load(free_pages=5)
    outbox.report_load(load)
    outbox.flush(1)
    for _ in range(2):
        outbox.handled(cast(Any, mine))
    outbox.flush(2)  # nothing to tell
    outbox.failed(cast(Any, mine), 7, worker_pb2.FAILURE_CODE_INTERNAL, "no")
    outbox.flush(3)  # goes along with the last report, which covers no command yet
    outbox.report_load(load)  # unchanged, but it covers them now
    outbox.flush(4)
    outbox.report_load(load)
    outbox.flush(5)
    assert [(batch.step, batch.commands) for batch in mine.batches] == [(1, 0), (3, 0), (4, 2)]
    assert [(batch.step, batch.commands) for batch in other.batches] == [(1, 0)]


def test_commands_of_a_session_that_ended_are_not_counted() -> None:
    outbox, session = Outbox(), Recorder()
    outbox.open(cast(Any, session))
    outbox.close(cast(Any, session))
    outbox.handled(cast(Any, session))
    outbox.report_load(worker_pb2.Load(free_pages=5))
    outbox.flush(1)
    assert not session.batches
