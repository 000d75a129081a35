"""Outgoing handoffs: prompts prefilled here for a worker that decodes their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.core.request import Request, RequestId
from engine.core.sampling_params import FinishReason
from engine.loop.engine import Engine
from kv_transfer import HandedOff, HandoffState, SenderEvent, SendFailed, Ticket
from prefill_worker.page_sender import PageSender, final_state
from prefill_worker.reports import OutgoingJob, OutgoingReports
from rpc.baton.v1 import worker_pb2


@dataclass(slots=True, eq=False)
class _Sending:
    """A request whose KV is sent to another worker."""

    job: OutgoingJob
    computed: int
    """Tokens whose KV is in the pool."""
    chunks: list[worker_pb2.Span] = field(default_factory=list)
    continues_elsewhere: bool = False
    """This worker's part is computed, and the receiver continues the request."""


class OutgoingHandoffs:
    """Requests end here with their first token; their pages are kept until they have been sent.

    Such a request is pinned from `submit` on: the scheduler does not preempt it, since the sender may read
    its pages. Methods ignore requests without a handoff.
    """

    def __init__(
        self, engine: Engine, reports: OutgoingReports, clock: Callable[[], float], sender: PageSender
    ) -> None:
        self._engine = engine
        self._reports = reports
        self._clock = clock
        self._sender = sender
        self._sending: dict[RequestId, _Sending] = {}
        """From the first chunk until the sender no longer reads the pages; may outlive the job."""
        self._begun: list[_Sending] = []
        """Handoffs whose cached prefix the step in flight may still be writing."""
        self._step_began = 0.0

    def __len__(self) -> int:
        """Requests whose pages the sender may read."""
        return len(self._sending)

    # ------------------------------------------------------------------------------ from the router

    def submit(self, request: Request) -> None:
        """Compute the request up to its first token. Raises what `Engine.submit` raises."""
        request.sampling = replace(request.sampling, max_tokens=len(request.output) + 1)
        request.pinned = True
        self._engine.submit(request)

    def attach(self, ticket: Ticket) -> None:
        # Also for a request that has ended: the sender then refuses the handoff at the receiver.
        self._sender.attach(ticket)

    def drop(self, request_id: RequestId) -> bool:
        """Abort a handoff. False if the request has none.

        During prefill, the engine aborts the request and `on_finished` the handoff; afterwards only the
        handoff is left to abort. The pages are freed when the sender no longer reads them.
        """
        if request_id not in self._sending:
            return False
        if not self._engine.abort(request_id):
            self._sender.abort(request_id)
        return True

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        """A step begins."""
        self._step_began = now

    def continues_elsewhere(self, request_id: RequestId) -> bool:
        """Whether another worker continues the request, which has just ended here."""
        sending = self._sending.get(request_id)
        return sending is not None and sending.continues_elsewhere

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.pinned and (job := self._reports.job(request.id)) is not None:
                self._sending[request.id] = _Sending(job, computed=request.num_cached or 0)
                self._sender.open(request.id, request_digest=job.digest(request.num_known))
                self._begun.append(self._sending[request.id])
        if self._engine.step_in_flight is None:
            self.on_step()

    def on_step(self) -> None:
        """No step writes a prefix that was cached before it: it is sent while the first chunk is computed."""
        for sending in self._begun:
            request = sending.job.request
            if request.num_cached and sending.computed == request.num_cached and request.finish is None:
                self._sender.computed(request.id, request, request.num_cached)
        self._begun.clear()

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
        sending.continues_elsewhere = self._has_more_to_decode(sending)
        if sending.continues_elsewhere:
            self._sender.finish(request.id, request, _final(sending.job))
        else:
            self._sender.abort(request.id)
        return True

    # ------------------------------------------------------------------------------ from the sender

    def on_transfer(self, event: SenderEvent) -> None:
        """The handoff is complete or failed: the pages are no longer read."""
        sending = self._sending.pop(event.handoff_id)
        request = sending.job.request
        if request.finish is None:
            self._engine.abort(request.id)
        else:
            self._engine.release(request)
        match event:
            case HandedOff():
                self._sender.report(event, sending.job, sending.chunks)
            case SendFailed(_, reason):
                self._reports.not_sent(request.id, reason)

    # ------------------------------------------------------------------------------ inside

    def _has_more_to_decode(self, sending: _Sending) -> bool:
        request = sending.job.request
        return (
            request.finish is FinishReason.LENGTH
            and len(request.output) < sending.job.sampling.max_tokens
            and request.num_tokens < self._engine.max_tokens
        )


def _final(job: OutgoingJob) -> HandoffState:
    """State of a request that the receiver continues. O(tokens)."""
    num_tokens = job.request.num_tokens - 1  # the receiver computes the KV of the first token
    return final_state(job, num_tokens, position=num_tokens)
