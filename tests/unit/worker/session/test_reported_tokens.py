"""What a router is told of each token."""

from __future__ import annotations

import math
from typing import Any, cast

from engine.core.events import TokenOut, Verified
from engine.core.request import Request
from engine.core.sampling_params import FinishReason, SamplingParams
from rpc.baton.v1 import sampling_pb2, worker_pb2
from worker.session.jobs import Job
from worker.session.outbox import Outbox


class Recorder:
    def __init__(self) -> None:
        self.batches: list[worker_pb2.EventBatch] = []

    def send(self, batch: worker_pb2.EventBatch) -> None:
        self.batches.append(batch)


def test_cached_tokens_and_chunks_are_reported_with_the_first_token_and_no_other() -> None:
    outbox, session = Outbox(), cast(Any, Recorder())
    outbox.open(session)
    request = Request(id=1, prompt=[1] * 9, sampling=SamplingParams(max_tokens=3), num_cached=8)
    job = Job(request, session, 0.0, math.inf, sampling_pb2.SamplingParams())
    job.chunks = [worker_pb2.Span(begin_s=1.0, end_s=2.0)]

    for position in range(3):
        outbox.token(job, TokenOut(request, 7, position, None, None), None)
        outbox.flush(position)

    tokens = [output.tokens for batch in session.batches for output in batch.outputs]
    assert [(token.position, token.cached_tokens, len(token.chunks)) for token in tokens] == [
        (0, 8, 1),
        (1, 0, 0),
        (2, 0, 0),
    ]


def test_the_tokens_of_a_step_with_drafts_are_one_event() -> None:
    outbox, session = Outbox(), cast(Any, Recorder())
    outbox.open(session)
    request = Request(id=1, prompt=[1] * 9, sampling=SamplingParams(max_tokens=9))
    job = Job(request, session, 0.0, math.inf, sampling_pb2.SamplingParams())
    job.verified = Verified(request, drafted=4, accepted=2, predicted=True)

    for position, token in enumerate((7, 8, 9), 5):
        finish = FinishReason.STOP if token == 9 else None
        outbox.token(job, TokenOut(request, token, position, None, finish, token == 9), finish)
    outbox.flush(0)

    (event,) = [output.tokens for batch in session.batches for output in batch.outputs]
    assert (list(event.ids), event.position, event.stop_token) == ([7, 8, 9], 5, 9)
    assert event.finish == sampling_pb2.FINISH_REASON_STOP
    assert (event.drafted, event.accepted, event.predicted) == (4, 2, True)
