"""Sends the KV pages of requests to other workers, and reports sent handoffs to the router."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request
from engine.loop.engine import Engine
from kv_transfer import HandedOff, HandoffState, PushSpan, SenderCommands, Ticket
from prefill_worker.reports import OutgoingJob, OutgoingReports
from rpc.baton.v1 import worker_pb2


class PageSender:
    """Commands of a KVSender in terms of requests. One per worker, for all its outgoing handoffs."""

    def __init__(
        self, sender: SenderCommands, reports: OutgoingReports, engine: Engine, handoff_timeout_s: float
    ) -> None:
        self._sender = sender
        self._reports = reports
        self._engine = engine
        self._handoff_timeout_s = handoff_timeout_s

    def open(
        self, handoff_id: int, *, keeps_decoding: bool = False, request_digest: int | None = None
    ) -> None:
        """See `KVSender.open`."""
        self._sender.open(
            handoff_id,
            self._handoff_timeout_s,
            keeps_decoding=keeps_decoding,
            request_digest=request_digest,
        )

    def attach(self, ticket: Ticket) -> None:
        """If the ticket's handoff is not open, it is refused at the receiver."""
        self._sender.attach(ticket)

    def computed(self, handoff_id: int, request: Request, num_tokens: int) -> None:
        """KV of tokens [0, num_tokens) is in the pool."""
        self._sender.computed(handoff_id, self._pages(request, num_tokens), num_tokens)

    def finish(self, handoff_id: int, request: Request, final: HandoffState) -> None:
        """Send the remaining pages, up to `final.position`, and then the state."""
        pages, state = self._pages(request, final.position), self._engine.state_pages(request)
        self._sender.finish(handoff_id, pages, final.position, final, state=state)

    def abort(self, handoff_id: int) -> None:
        self._sender.abort(handoff_id)

    def report(self, sent: HandedOff, job: OutgoingJob, chunks: Sequence[worker_pb2.Span]) -> None:
        """Count a sent handoff, and end its job unless that has ended. `chunks`: prefill chunks."""
        spans = [span_of(push, job.arrival) for push in sent.pushes]
        self._reports.handed_off(job.request.id, sent.bytes, chunks, spans)

    def _pages(self, request: Request, num_tokens: int) -> list[int]:
        """Pages of blocks with computed tokens. Later pages may still be replaced by cached ones."""
        needs = self._engine.kv.needs
        return request.pages[: needs.blocks(num_tokens) * needs.stride]


def final_state(job: OutgoingJob, num_known: int, position: int) -> HandoffState:
    """State from which the receiver continues at token `position`. O(tokens).

    `num_known`: tokens that the receiver has from the router; the others are in the state.
    """
    request = job.request
    return HandoffState(
        tokens=tuple(request.tokens(num_known, request.num_tokens)),
        position=position,
        seed=request.sampling.seed,
        request_digest=job.digest(num_known),
    )


def span_of(push: PushSpan, arrival: float) -> worker_pb2.Span:
    """A write, in seconds since the request's arrival."""
    return worker_pb2.Span(
        begin_s=push.begin - arrival,
        end_s=push.end - arrival,
        first_token=push.first_token,
        num_tokens=push.num_tokens,
        bytes=push.bytes,
    )
