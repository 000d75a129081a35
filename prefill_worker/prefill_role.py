"""The prefill worker's half of a handoff: compute the prompt, push its KV, sample one token, let go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from engine.core.events import TokenOut
from engine.core.request import Request
from engine.core.sampling_params import FinishReason
from engine.engine import Engine
from kv_transfer import Final as FinalState
from kv_transfer import HandedOver, PushSpan, SenderEvent, SenderThread, SendFailed
from rpc.baton.v1 import worker_pb2
from worker.convert import ticket_from_proto
from worker.handoff import digest_of
from worker.jobs import Job
from worker.metrics import Outcome, WorkerMetrics
from worker.outbox import Outbox
from worker.role import Role

__all__ = ["PrefillRole"]


@dataclass(slots=True, eq=False)
class _Sending:
    """A request whose KV is, or will be, on its way to a decode worker."""

    job: Job
    computed: int
    """Tokens whose KV is in the pool."""
    chunks: list[worker_pb2.Span] = field(default_factory=list)
    goes_on: bool = False
    """The prompt is computed, and the first token did not end the request: a decode worker continues."""


class PrefillRole(Role):
    """Requests end here with their first token; their pages stay until the sender has done with them."""

    def __init__(
        self,
        engine: Engine,
        outbox: Outbox,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        sender: SenderThread,
        handoff_timeout_s: float,
    ) -> None:
        super().__init__(engine, outbox, metrics, clock)
        self._sender = sender
        self._handoff_timeout_s = handoff_timeout_s
        self._sending: dict[int, _Sending] = {}
        """From the first chunk until the sender reads the pages no more: longer than the job, if need be."""
        self._step_began = 0.0

    # ------------------------------------------------------------------------------ from the router

    def submit(self, job: Job) -> None:
        request = job.request
        request.sampling = replace(request.sampling, max_tokens=len(request.output) + 1)
        self.engine.submit(request)

    def attach(self, ticket: worker_pb2.Ticket) -> None:
        # Also for a request that is gone: the sender then tells the receiver that nobody will write.
        self._sender.attach(ticket_from_proto(ticket))

    def fence(self, message: worker_pb2.Fence) -> None:
        self._sender.fence(message.epoch, message.reason)

    # ------------------------------------------------------------------------------ from the loop

    def tick(self, now: float) -> None:
        super().tick(now)
        self._step_began = now

    def on_tokens(self, job: Job, token: TokenOut) -> None:
        if self._sending[job.id].goes_on:
            self.report(job, token, finish=None)
        else:
            super().on_tokens(job, token)

    @property
    def num_unexpected(self) -> int:
        return self._sender.num_unexpected

    @property
    def idle(self) -> bool:
        return super().idle and not self._sending

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if (job := self.jobs.get(request.id)) is not None:
                self._sending[request.id] = _Sending(job, computed=request.num_cached or 0)
                self._sender.open(request.id, self._handoff_timeout_s)
        super().on_started(requests)

    def on_computed(self, request: Request, upto: int) -> None:
        sending = self._sending[request.id]
        arrival = sending.job.arrival
        sending.chunks.append(
            worker_pb2.Span(
                begin_s=self._step_began - arrival,
                end_s=self.clock() - arrival,
                first_token=sending.computed,
                num_tokens=upto - sending.computed,
            )
        )
        sending.computed = upto
        self._sender.computed(request.id, self._pages(request, upto), upto)

    def on_finished(self, request: Request) -> bool:
        sending = self._sending.get(request.id)
        if sending is None:
            return False
        sending.goes_on = self._goes_on(sending)
        if sending.goes_on:
            num_tokens = (
                request.num_tokens - 1
            )  # the first token's own KV is for the decode worker to compute
            final = FinalState(
                first_token=request.output[-1],
                position=num_tokens,
                seed=request.sampling.seed,
                request_digest=digest_of(request, num_tokens, sending.job.sampling),
            )
            self._sender.finish(request.id, self._pages(request, num_tokens), num_tokens, final)
        else:
            self._sender.abort(request.id)
        return True

    # ------------------------------------------------------------------------------ from the sender

    def on_transfer(self, event: SenderEvent) -> None:
        """Either way, the pages are no longer read."""
        sending = self._sending.pop(event.handoff_id)
        job = sending.job
        if job.request.finish is None:
            self.engine.abort(job.id)
        else:
            self.engine.release(job.request)
        match event:
            case HandedOver(_, num_bytes, pushes):
                self.metrics.transfer_bytes.inc(num_bytes)
                if self.jobs.take(job.id) is not None:
                    self.metrics.ended(Outcome.HANDED_OVER)
                    self.outbox.handed_over(
                        job, num_bytes, sending.chunks, [_span(push, job.arrival) for push in pushes]
                    )
            case SendFailed(_, reason):
                if job.id in self.jobs:
                    self.metrics.transfer_failures.inc()
                    self.fail(job, worker_pb2.FAILURE_CODE_HANDOFF, reason)

    # ------------------------------------------------------------------------------ inside

    def drop(self, job: Job) -> None:
        # While it is computed, the engine ends it and `on_finished` the handoff; after that only the
        # handoff is left to end. Its pages are free when the sender says that it reads them no more.
        if not self.engine.abort(job.id) and job.id in self._sending:
            self._sender.abort(job.id)

    def _goes_on(self, sending: _Sending) -> bool:
        request = sending.job.request
        return (
            request.finish is FinishReason.LENGTH
            and len(request.output) < sending.job.sampling.max_tokens
            and request.num_tokens < self.engine.max_tokens
        )

    def _pages(self, request: Request, num_tokens: int) -> list[int]:
        """Those that hold computed tokens. Pages behind them may still be exchanged for cached ones."""
        return request.pages[: -(-num_tokens // self.engine.config.page_size)]


def _span(push: PushSpan, arrival: float) -> worker_pb2.Span:
    return worker_pb2.Span(
        begin_s=push.begin - arrival,
        end_s=push.end - arrival,
        first_token=push.first_token,
        num_tokens=push.num_tokens,
        bytes=push.bytes,
    )
