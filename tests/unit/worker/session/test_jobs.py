"""Deadlines of requests."""

from __future__ import annotations

import math
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from rpc.baton.v1 import sampling_pb2
from worker.session.jobs import Job, Jobs


def job(id: int, deadline: float = math.inf, session: Any = None) -> Job:
    request = Request(id=id, prompt=[1], sampling=SamplingParams(max_tokens=1))
    return Job(request, cast(Any, session), 0.0, deadline, sampling_pb2.SamplingParams())


def test_a_job_that_was_taken_is_never_overdue() -> None:
    jobs = Jobs()
    jobs.add(job(1, deadline=5.0))
    jobs.add(job(2, deadline=6.0))
    assert jobs.take(1) is not None
    assert jobs.take(1) is None
    assert jobs.next_deadline() == 6.0
    assert [late.id for late in jobs.overdue(10.0)] == [2]


def test_jobs_that_were_taken_long_before_their_deadlines_leave_nothing_behind() -> None:
    jobs = Jobs()
    jobs.add(job(0, deadline=1.0))
    for id in range(1, 1000):
        jobs.add(job(id, deadline=100.0 + id))
        jobs.take(id)
    assert len(jobs._deadlines) <= 5
    assert [late.id for late in jobs.overdue(5000.0)] == [0]


def test_without_deadlines_there_is_nothing_to_wake_up_for() -> None:
    jobs = Jobs()
    jobs.add(job(1))
    assert jobs.next_deadline() == math.inf
    assert jobs.overdue(1e9) == []


def test_jobs_are_found_by_their_session() -> None:
    jobs = Jobs()
    jobs.add(job(1, session="a"))
    jobs.add(job(2, session="b"))
    jobs.add(job(3, session="a"))
    assert [found.id for found in jobs.of(cast(Any, "a"))] == [1, 3]


@given(
    st.lists(st.floats(0, 100), max_size=20, unique=True),
    st.sets(st.integers(0, 19)),
    st.lists(st.floats(0, 120), max_size=10),
)
def test_each_job_is_reported_once_at_the_first_look_after_its_deadline(
    deadlines: list[float], taken: set[int], looks: list[float]
) -> None:
    jobs = Jobs()
    for id, deadline in enumerate(deadlines):
        jobs.add(job(id, deadline))
    for id in taken:
        jobs.take(id)
    reported: list[int] = []
    for now in sorted(looks):
        late = [found.id for found in jobs.overdue(now)]
        assert all(deadlines[id] <= now for id in late)
        reported += late
    latest = max(looks, default=-1.0)
    assert sorted(reported) == [id for id, d in enumerate(deadlines) if d <= latest and id not in taken]
