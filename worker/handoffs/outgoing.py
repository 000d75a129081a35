"""Outgoing handoffs: requests prefilled here, wholly or in part, while their KV is sent to another worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.core.request import Request, RequestId
from engine.core.sampling_params import FinishReason
from engine.engine import Engine
from kv_transfer import Final, HandedOver, SenderEvent, SendFailed, Ticket
from rpc.baton.v1 import worker_pb2
from worker.handoffs.page_sender import PageSender, final_state
from worker.handoffs.request_digest import digest_of
from worker.session.answers import Answers
from worker.session.jobs import Job
from worker.session.refusal import CommandRefused

__all__ = ["OutgoingHandoffs"]


@dataclass(slots=True, eq=False)
class _Sending:
    """A request whose KV is or will be sent to another worker."""

    job: Job
    computed: int
    """Tokens whose KV is in the pool."""
    chunks: list[worker_pb2.Span] = field(default_factory=list)
    goes_on: bool = False
    """What was to be computed here is, and the first token did not end the request: the receiver goes on."""


class OutgoingHandoffs:
    """Requests end here with their first token, or within their prompt; their pages are kept until the sender
    has sent them.

    From `submit` on such a request is pinned, since the sender may read its pages: the scheduler does not
    preempt it. Methods ignore requests that are not handed over.
    """

    def __init__(
        self, engine: Engine, answers: Answers, clock: Callable[[], float], sender: PageSender
    ) -> None:
        self._engine = engine
        self._answers = answers
        self._clock = clock
        self._sender = sender
        self._sending: dict[RequestId, _Sending] = {}
        """Handoffs from the first chunk until the sender stops reading pages; they may outlive the job."""
        self._step_began = 0.0

    def __len__(self) -> int:
        """Requests whose pages the sender may read."""
        return len(self._sending)

    # ------------------------------------------------------------------------------ from the router

    def submit(self, job: Job, prefill_until: int | None = None) -> None:
        """Compute the request up to its first token, or only tokens [0, prefill_until) and no new one.

        Raises CommandRefused, and what `Engine.submit` raises.
        """
        request = job.request
        if prefill_until is None:
            request.sampling = replace(request.sampling, max_tokens=len(request.output) + 1)
        else:
            _cut(job, prefill_until)
        request.pinned = True
        self._engine.submit(request)

    def attach(self, ticket: Ticket) -> None:
        # Also for a request that has ended: the sender then revokes the handoff at the receiver.
        self._sender.attach(ticket)

    def drop(self, job: Job) -> bool:
        """Abort a handoff. False if the request is not handed over.

        During prefill, the engine aborts the request and `on_finished` the handoff; afterwards only the
        handoff is left to abort. Its pages are freed when the sender has stopped reading them.
        """
        if job.id not in self._sending:
            return False
        if not self._engine.abort(job.id):
            self._sender.abort(job.id)
        return True

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        """A step begins."""
        self._step_began = now

    def goes_on(self, request_id: RequestId) -> bool:
        """Whether another worker decodes the request that has just ended here."""
        sending = self._sending.get(request_id)
        return sending is not None and sending.goes_on

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.pinned and (job := self._answers.jobs.get(request.id)) is not None:
                self._sending[request.id] = _Sending(job, computed=request.num_cached or 0)
                self._sender.open(request.id)

    def on_computed(self, request: Request, upto: int) -> None:
        sending = self._sending.get(request.id)
        if sending is None:
            return
        arrival = sending.job.arrival
        sending.chunks.append(
            worker_pb2.Span(
                begin_s=self._step_began - arrival,
                end_s=self._clock() - arrival,
                first_token=sending.computed,
                num_tokens=upto - sending.computed,
            )
        )
        sending.computed = upto
        self._sender.computed(request.id, request, upto)

    def on_finished(self, request: Request) -> bool:
        """True: the sender still reads the request's pages."""
        sending = self._sending.get(request.id)
        if sending is None:
            return False
        sending.goes_on = self._is_to_go_on(sending)
        if sending.goes_on:
            self._sender.finish(request.id, request, _final(sending.job))
        else:
            self._sender.abort(request.id)
        return True

    # ------------------------------------------------------------------------------ from the sender

    def on_transfer(self, event: SenderEvent) -> None:
        """Sent or failed: the pages are no longer read."""
        sending = self._sending.pop(event.handoff_id)
        job, answers = sending.job, self._answers
        if job.request.finish is None:
            self._engine.abort(job.id)
        else:
            self._engine.release(job.request)
        match event:
            case HandedOver():
                self._sender.report(event, job, sending.chunks)
            case SendFailed(_, reason):
                if job.id in answers.jobs:
                    answers.metrics.transfer_failures.inc()
                    answers.fail(job, worker_pb2.FAILURE_CODE_HANDOFF, reason)

    # ------------------------------------------------------------------------------ inside

    def _is_to_go_on(self, sending: _Sending) -> bool:
        request = sending.job.request
        return (
            request.finish is FinishReason.LENGTH
            and len(request.output) < sending.job.sampling.max_tokens
            and request.num_tokens < self._engine.max_tokens
        )


def _cut(job: Job, prefill_until: int) -> None:
    """Leave tokens [0, prefill_until) of the request, and no new one. Raises CommandRefused.

    The digest stays that of the whole request, by which the receiver knows it.
    """
    request = job.request
    if prefill_until >= request.num_tokens:
        raise CommandRefused(
            worker_pb2.FAILURE_CODE_INVALID,
            f"prefill_until {prefill_until} leaves nothing of {request.num_tokens} tokens to the receiver",
        )
    job.digest = digest_of(request, request.num_tokens, job.sampling)
    request.prompt, request.output = request.tokens(0, prefill_until), []
    request.sampling, request.matcher = replace(request.sampling, max_tokens=0, grammar=None), None


def _final(job: Job) -> Final:
    """State of a request that has ended here and goes on elsewhere. O(tokens)."""
    request = job.request
    if job.digest is not None:
        return Final((), request.num_tokens, request.sampling.seed, job.digest)
    num_tokens = request.num_tokens - 1  # the receiver computes the KV of the first token
    return final_state(job, num_tokens, position=num_tokens)
