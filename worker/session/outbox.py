"""Events of the engine thread: one EventBatch per step and session."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from engine.core.events import TokenOut
from engine.core.media import Encoding
from engine.core.output import Output
from engine.core.request import RequestId
from engine.core.sampling_params import FinishReason
from engine.kv.cache.journal import CacheChange
from engine.kv.manager.page_tiers import TierUse
from engine.loop.pauses.slow_steps import SlowStep
from rpc.baton.v1 import worker_pb2
from worker.session.convert import (
    FINISH_REASONS,
    logprobs_to_proto,
    outputs_to_proto,
    slow_step_to_proto,
)
from worker.session.jobs import Job
from worker.session.router_session import RouterSession

_BLOCKS_A_BATCH: Final = 100_000
"""An entry has at most 9 bytes, so a message stays below gRPC's default limit of 4 MiB."""


class Outbox:
    """Collects events by session until `flush`. Belongs to the engine thread."""

    def __init__(self) -> None:
        self._handled: dict[RouterSession, int] = {}
        """Number of executed commands of each session."""
        self._counted: dict[RouterSession, int] = {}
        """Number of commands that `_load` covers."""
        self._batches: dict[RouterSession, worker_pb2.EventBatch] = {}
        self._load = worker_pb2.Load()
        self._peer: worker_pb2.Peer | None = None
        self._served: worker_pb2.ServedWeights | None = None
        self._step = 0

    @property
    def sessions(self) -> Iterable[RouterSession]:
        return self._handled

    def open(self, session: RouterSession, cached: Sequence[CacheChange] = ()) -> None:
        """Send load and cache reports to `session` from now on, the first one at once."""
        self._handled[session] = self._counted[session] = 0
        batch = self._batch(session)
        if self._peer is not None:
            batch.peer.CopyFrom(self._peer)
        if self._served is not None:
            batch.served.CopyFrom(self._served)
        for known in cached:
            for first in range(0, len(known.blocks), _BLOCKS_A_BATCH):
                blocks = known.blocks[first : first + _BLOCKS_A_BATCH]
                change = worker_pb2.CacheChange(stored=True, blocks=blocks, below=known.below)
                session.send(worker_pb2.EventBatch(cache=[change]))

    def close(self, session: RouterSession) -> None:
        for known in (self._handled, self._counted, self._batches):
            known.pop(session, None)

    def handled(self, session: RouterSession) -> None:
        """Count a command of this session."""
        if session in self._handled:
            self._handled[session] += 1

    def fail(self, reason: str) -> None:
        """Fail all sessions: the engine has failed."""
        for session in self._handled:
            session.fail(reason)
        for known in (self._handled, self._counted, self._batches):
            known.clear()

    def report_load(self, load: worker_pb2.Load) -> None:
        """Add the load to every batch.

        A session without events gets it when it has changed, or when it covers more of its commands.
        """
        changed = load != self._load
        self._load = load
        for session, handled in self._handled.items():
            if changed or handled != self._counted[session]:
                self._counted[session] = handled
                self._batch(session)

    def report_cache(self, changes: Sequence[CacheChange]) -> None:
        """Send the changes to every session, in order."""
        if not changes:
            return
        for session in self._handled:
            cache = self._batch(session).cache
            for change in changes:
                cache.add(stored=change.stored, blocks=change.blocks, below=change.below)

    def flush(self, step: int | None = None) -> None:
        """Send all collected events, as of the end of `step`; None: before the next step ends."""
        self._step = self._step if step is None else step
        for session, batch in self._batches.items():
            batch.step = self._step
            batch.load.CopyFrom(self._load)
            batch.commands = self._counted[session]
            batch.sent_s = time.monotonic()
            session.send(batch)
        self._batches.clear()

    def token(self, job: Job, token: TokenOut, finish: FinishReason | None) -> None:
        """Report a new token; `finish` is the reason to report. Several of a step become one event."""
        outputs = self._batch(job.session).outputs
        last = outputs[-1] if outputs else None
        if last is not None and last.request_id == job.id and last.tokens.ids and not last.tokens.finish:
            event = last.tokens
        else:
            event = outputs.add(request_id=job.id).tokens
            event.position = token.position
            self._begin(event, job)
        event.ids.append(token.token)
        event.finish = FINISH_REASONS[finish]
        if token.logprobs is not None:
            event.logprobs.append(logprobs_to_proto(token.logprobs))
        if token.is_stop:
            event.stop_token = token.token

    def ended(self, job: Job, finish: FinishReason) -> None:
        """Report the end of a request that has no tokens."""
        event = self._batch(job.session).outputs.add(request_id=job.id).tokens
        self._begin(event, job)
        event.finish = FINISH_REASONS[finish]

    def _begin(self, event: worker_pb2.Tokens, job: Job) -> None:
        """Add what is reported once, with the first token of a request or of a step with drafts."""
        if not job.reported_cached:
            job.reported_cached = True
            event.cached_tokens = job.request.num_cached or 0
        if job.chunks:
            event.chunks.extend(job.chunks)
            job.chunks = []
        if job.verified is not None:
            event.drafted, event.accepted = job.verified.drafted, job.verified.accepted
            event.predicted = job.verified.predicted
            job.verified = None

    def output(self, job: Job, output: Output) -> None:
        """Report what is no token, in the order of the calls."""
        self._batch(job.session).outputs.extend(outputs_to_proto(job.id, output))

    def started(self, job: Job, queued_s: float, of_tiers: TierUse | None = None) -> None:
        waited = {reason.value: seconds for reason, seconds in job.request.scheduling.waited.items()}
        if job.pull_s:
            waited["pull"] = job.pull_s
        elsewhere = {tier.value: tokens for tier, tokens in of_tiers.promoted.items()} if of_tiers else {}
        if job.pulled:
            elsewhere["peer"] = job.pulled
        self._batch(job.session).started.add(
            request_id=job.id,
            cached_tokens=job.request.num_cached,
            queued_s=queued_s,
            waited=waited,
            promoted=elsewhere,
            promotion_s=of_tiers.promotion_s if of_tiers else 0.0,
            adapter_load_s=job.adapter_load_s,
        )

    def encoded(
        self, session: RouterSession, request_id: RequestId, arrival: float, encoding: Encoding
    ) -> None:
        """Report an image that was encoded for a request, which came at `arrival`."""
        item, begin = encoding.item, encoding.begin - arrival
        reports = self._batch(session).encoded
        if not reports or reports[-1].request_id != request_id:
            reports.add(request_id=request_id)
        reports[-1].items.add(
            begin_s=begin, end_s=begin + encoding.seconds, first_token=item.offset, num_tokens=item.length
        )

    def fetched(self, job: Job, digest: bytes, seconds: float, num_bytes: int) -> None:
        """Report that the rows of an image came from another worker, `seconds` after the request."""
        item = next(item for item in job.request.media if item.digest == digest)
        report = self._batch(job.session).encoded.add(request_id=job.id)
        report.fetched.add(end_s=seconds, first_token=item.offset, num_tokens=item.length, bytes=num_bytes)

    def progress(self, job: Job, num_computed: int) -> None:
        self._batch(job.session).progress.add(request_id=job.id, num_computed=num_computed)

    def preempted(self, job: Job, reason: str) -> None:
        self._batch(job.session).preempted.add(request_id=job.id, reason=reason)

    def resumed(self, job: Job, waited_s: float) -> None:
        self._batch(job.session).resumed.add(request_id=job.id, waited_s=waited_s)

    def slow(self, step: SlowStep) -> None:
        """Add the step to the batches of all sessions that get tokens of it."""
        for batch in self._batches.values():
            if any(output.HasField("tokens") for output in batch.outputs):
                batch.slow_step.CopyFrom(slow_step_to_proto(step))

    def measured(self, work: worker_pb2.StepWork) -> None:
        """Add the step to the batches of all sessions that have events anyway."""
        for batch in self._batches.values():
            batch.step_work.CopyFrom(work)

    def reserved(self, job: Job, ticket: worker_pb2.Ticket, waited_s: float) -> None:
        self._batch(job.session).reserved.add(request_id=job.id, ticket=ticket, waited_s=waited_s)

    def wanted(self, job: Job, ticket: worker_pb2.Ticket) -> None:
        self._batch(job.session).wanted.add(request_id=job.id, ticket=ticket)

    def shared(
        self, session: RouterSession, handoff_id: int, num_bytes: int, pushes: Sequence[worker_pb2.Span]
    ) -> None:
        """Cached KV was sent to another worker."""
        self._batch(session).handed_off.add(request_id=handoff_id, bytes=num_bytes, pushes=pushes)

    def handed_off(
        self, job: Job, num_bytes: int, chunks: Sequence[worker_pb2.Span], pushes: Sequence[worker_pb2.Span]
    ) -> None:
        self._batch(job.session).handed_off.add(
            request_id=job.id, bytes=num_bytes, chunks=chunks, pushes=pushes
        )

    def arrived(self, job: Job, transfer_s: float, exposed_s: float) -> None:
        self._batch(job.session).arrived.add(
            request_id=job.id,
            transfer_s=transfer_s,
            exposed_s=exposed_s,
            position=len(job.request.output),
            adapter_load_s=job.adapter_load_s,
        )

    def reopened(self, peer: worker_pb2.Peer) -> None:
        """Send the new address of this worker's KV pool to every current and future session."""
        self._peer = peer
        for session in self._handled:
            self._batch(session).peer.CopyFrom(peer)

    def updated(self, served: worker_pb2.ServedWeights) -> None:
        """Tell every current and future session which weights requests are computed with."""
        self._served = served
        for session in self._handled:
            self._batch(session).served.CopyFrom(served)

    def failed(
        self, session: RouterSession, request_id: RequestId, code: worker_pb2.FailureCode, message: str
    ) -> None:
        self._batch(session).failed.add(request_id=request_id, code=code, message=message)

    def _batch(self, session: RouterSession) -> worker_pb2.EventBatch:
        """The batch being filled; it is discarded if the session has ended."""
        batch = self._batches.get(session)
        if batch is None:
            batch = worker_pb2.EventBatch()
            if session in self._handled:
                self._batches[session] = batch
        return batch
