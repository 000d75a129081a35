"""What a worker says of a step, and in which order."""

from __future__ import annotations

import logging
import math

import pytest

from engine.core.events import StepOutput, TokenOut
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.core.waits import WaitReason
from engine.errors import DeadlineUnreachable, EngineError, MediaMissing, NotFinite, UnservableRequest
from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.engine.engines import make_engine
from tests.unit.worker.handlers import Handled, Stream, handled
from worker.session.jobs import Job


def added(worker: Handled, session: Stream, request: Request) -> Job:
    job = Job(request, session, 0.0, math.inf, sampling_pb2.SamplingParams())  # type: ignore[arg-type]
    worker.jobs.add(job)
    return job


def test_first_tokens_are_reported_before_those_of_running_requests() -> None:
    worker, session = handled(make_engine()), Stream()
    worker.handler.open(session)
    requests = [Request(id=id, prompt=[1], sampling=SamplingParams(max_tokens=9)) for id in range(4)]
    for request in requests:
        added(worker, session, request)

    def step(ids: list[int]) -> list[int]:
        tokens = [TokenOut(requests[id], token=7, position=0, logprobs=None, finish=None) for id in ids]
        worker.handler.on_step(StepOutput(started=[], num_tokens=len(ids), tokens=tokens))
        worker.outbox.flush(0)
        return [output.request_id for output in session.batches.popleft().outputs]

    assert step([0, 1]) == [0, 1]
    assert step([0, 2, 1, 3]) == [2, 3, 0, 1]
    assert step([3, 0, 2, 1]) == [3, 0, 2, 1]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MediaMissing("no pixels"), worker_pb2.FAILURE_CODE_MEDIA),
        (UnservableRequest("never"), worker_pb2.FAILURE_CODE_INVALID),
        (NotFinite(), worker_pb2.FAILURE_CODE_INTERNAL),
    ],
)
def test_the_router_is_told_what_to_do_about_a_failed_request(
    error: EngineError, code: worker_pb2.FailureCode
) -> None:
    worker, session = handled(make_engine()), Stream()
    worker.handler.open(session)
    request = Request(1, [1], SamplingParams(max_tokens=9))
    added(worker, session, request)
    worker.handler.on_step(StepOutput(started=[], num_tokens=1, failed=[(request, error)]))
    worker.outbox.flush(0)
    [failed] = session.batches.popleft().failed
    assert (failed.request_id, failed.code, failed.message) == (1, code, str(error))


def test_only_the_first_token_reports_cached_prompt_tokens() -> None:
    engine, session = make_engine(), Stream()
    worker = handled(engine)
    handler = worker.handler
    handler.open(session)

    def cached_tokens(request_id: int, prompt: list[int]) -> list[int]:
        session.batches.clear()
        sampling = sampling_pb2.SamplingParams(max_tokens=3, ignore_eos=True)
        work = worker_pb2.Work(request_id=request_id, prompt=prompt, sampling=sampling)
        handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
        while engine.has_work:
            handler.on_step(engine.step())
            worker.outbox.flush(0)
        return [output.tokens.cached_tokens for batch in session.batches for output in batch.outputs]

    prompt = list(range(30))
    assert cached_tokens(1, prompt) == [0, 0, 0]
    assert cached_tokens(2, prompt) == [28, 0, 0]


def test_queue_time_begins_at_the_arrival_of_the_command() -> None:
    engine, session = make_engine(), Stream()
    worker = handled(engine)
    worker.handler.open(session)
    worker.clock.now = 5.0
    sampling = sampling_pb2.SamplingParams(max_tokens=1)
    work = worker_pb2.Work(request_id=1, prompt=[1, 2, 3], sampling=sampling, timeout_s=6.0)
    worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 1.0)
    assert worker.handler.next_wakeup() == 7.0
    engine.step()
    (started,) = [s for batch in session.batches for s in batch.started]
    assert started.queued_s == 4.0


def test_a_refused_request_is_logged_by_the_clients_id_and_trace(caplog: pytest.LogCaptureFixture) -> None:
    worker = handled(make_engine())
    sampling = sampling_pb2.SamplingParams(max_tokens=3)
    work = worker_pb2.Work(
        request_id=1, prompt=[10**6], sampling=sampling, name="cmpl-7", traceparent="00-a-b-01"
    )
    with caplog.at_level(logging.INFO, "worker"):
        worker.handler.handle(Stream(), worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    assert "request cmpl-7 (00-a-b-01) refused: token ids must be in" in caplog.text


def test_the_first_token_brings_the_times_of_the_prompts_chunks_in_mixed_mode() -> None:
    engine, session = make_engine(chunk_budget=16), Stream()
    worker = handled(engine)
    worker.handler.open(session)
    sampling = sampling_pb2.SamplingParams(max_tokens=3, ignore_eos=True)
    work = worker_pb2.Work(request_id=1, prompt=list(range(40)), sampling=sampling)
    worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    while engine.has_work:
        worker.handler.tick(worker.clock.now)
        worker.clock.now += 1.0
        worker.handler.on_step(engine.step())
        worker.outbox.flush(0)
    tokens = [output.tokens for batch in session.batches for output in batch.outputs]
    assert [len(token.chunks) for token in tokens] == [3, 0, 0]
    spans = [(chunk.begin_s, chunk.end_s, chunk.first_token, chunk.num_tokens) for chunk in tokens[0].chunks]
    assert spans == [(0.0, 1.0, 0, 16), (1.0, 2.0, 16, 16), (2.0, 3.0, 32, 8)]


def test_a_started_request_reports_its_wait_reasons() -> None:
    engine, session = make_engine(chunk_budget=16), Stream()
    worker = handled(engine)
    worker.handler.open(session)
    for number in (1, 2):
        sampling = sampling_pb2.SamplingParams(max_tokens=1)
        prompt = [number] * 40
        work = worker_pb2.Work(request_id=number, prompt=prompt, sampling=sampling, tenant="key-1")
        worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    while engine.has_work:
        worker.handler.on_step(engine.step())
        worker.outbox.flush(0)
    started = [s for batch in session.batches for s in batch.started]
    assert [s.request_id for s in started] == [1, 2]
    assert set(started[1].waited) == {"budget"}


def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once() -> None:
    def refuse(request: Request) -> None:
        raise DeadlineUnreachable("the first token would come after 9 s")

    engine, session = make_engine(), Stream()
    engine.submit = refuse  # type: ignore[method-assign]
    worker = handled(engine)
    worker.handler.open(session)
    work = worker_pb2.Work(request_id=1, prompt=[1, 2, 3], ttft_deadline_s=2.0)
    worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    worker.outbox.flush(0)
    (failed,) = [f for batch in session.batches for f in batch.failed]
    assert failed.code == worker_pb2.FAILURE_CODE_DEADLINE
    assert failed.message == "the first token would come after 9 s"


def test_a_preemption_is_reported_with_its_reason_and_its_end_with_the_wait() -> None:
    worker, session = handled(make_engine()), Stream()
    worker.handler.open(session)
    request = Request(id=1, prompt=[1], sampling=SamplingParams(max_tokens=9))
    added(worker, session, request)
    worker.clock.now, request.scheduling.preempted_for = 5.0, WaitReason.PAGES
    worker.handler.on_step(StepOutput(preempted=[request]))
    worker.outbox.flush(0)
    [preempted] = session.batches.popleft().preempted
    assert (preempted.request_id, preempted.reason) == (1, "pages")
    worker.clock.now, request.scheduling.preempted_for = 7.5, None
    worker.handler.on_step(StepOutput(resumed=[request]))
    worker.outbox.flush(0)
    [resumed] = session.batches.popleft().resumed
    assert (resumed.request_id, resumed.waited_s) == (1, 2.5)


def test_an_engine_reports_a_preemption_after_the_tokens_of_its_step() -> None:
    engine, session = make_engine(num_pages=12), Stream()
    engine.scheduler._lengths._mean = 1.0  # outputs are expected to be short
    worker = handled(engine)
    worker.handler.open(session)
    sampling = sampling_pb2.SamplingParams(max_tokens=24, ignore_eos=False)
    for id in (1, 2):
        work = worker_pb2.Work(request_id=id, prompt=[id] * 9, sampling=sampling)
        worker.handler.handle(session, worker_pb2.Command(submit=worker_pb2.Submit(work=work)), 0.0)
    told: list[str] = []
    while engine.has_work:
        worker.handler.on_step(engine.step())
        worker.outbox.flush(0)
    for batch in session.batches:
        told += ["resumed" for event in batch.resumed if event.request_id == 2]
        told += ["preempted" for event in batch.preempted if event.request_id == 2]
    assert told == ["preempted", "resumed"]
