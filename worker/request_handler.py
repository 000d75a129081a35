"""Executes the router's commands: submit, abort, reserve, attach, migrate, fence.

With a KV transport, `RequestHandler` has `Handoffs`: `OutgoingHandoffs` for prompts that are prefilled for
another worker, `Migrations` for running requests that move to another worker, `IncomingHandoffs` for requests
whose KV comes from another worker, and `SharedPrefixes` and `PulledPrefixes` for cached prefixes in both
directions. Everything here runs on the engine thread, between steps or from within one (the engine's hooks).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from engine.core.events import StepOutput
from engine.core.request import Request, RequestId
from engine.core.sampling_params import FinishReason
from engine.errors import UnservableRequest
from engine.kv.cache.journal import CacheChange
from engine.loop.engine import Engine
from engine.loop.pauses.causes import Cause
from kv_transfer import EndpointEvent, Reopened
from kv_transfer.transfer_thread import TransferThread
from rpc.baton.v1 import worker_pb2
from worker.adapters.loading import AdapterLoading
from worker.grammar_loading import GrammarLoading
from worker.handoffs import Handoffs
from worker.images import WorkerImages
from worker.job_starter import JobStarter
from worker.session.answers import Answers, code_of
from worker.session.cached import manage_cache
from worker.session.convert import (
    load_to_proto,
    peer_from_proto,
    peer_to_proto,
    prompt_from_proto,
    stats_to_proto,
    step_work_to_proto,
    ticket_from_proto,
)
from worker.session.jobs import Job, router_loads
from worker.session.metrics import RequestOutcome
from worker.session.router_session import RouterSession
from worker.sleep import WorkerSleep
from worker.staged_weights import StagedWeights
from worker.weights import WorkerWeights

log = logging.getLogger(__name__)


class RequestHandler:
    """Also the engine's hooks: see `engine.loop.hooks.Hooks`."""

    def __init__(
        self,
        engine: Engine,
        answers: Answers,
        clock: Callable[[], float],
        grammars: GrammarLoading,
        adapters: AdapterLoading,
        handoffs: Handoffs | None = None,
        *,
        images: WorkerImages | None = None,
        identified: bool = False,
    ) -> None:
        """`handoffs`: None without a KV transport; every request is then computed here to its end.
        `identified`: see `WorkerWeights`; always so with a transport.
        """
        self._engine = engine
        self._answers = answers
        self._clock = clock
        self.grammars: Final = grammars
        self.adapters: Final = adapters
        self._weights = WorkerWeights(engine, identified=identified or handoffs is not None)
        load_adapter = partial(adapters.want, on_end=self._on_adapter)
        self._load_adapter = load_adapter
        self.images: Final = images
        fetch_rows = None if images is None else images.fetch
        self._starting = JobStarter(engine, answers, grammars, self._weights, load_adapter, fetch_rows)
        self._handoffs = handoffs
        self._step_began = 0.0
        self._drained_until = math.inf
        """End of a drain, whose router may end before it; math.inf: the worker is not drained."""
        self._is_updating = False  # whether the drain is for other weights

    @property
    def transfer(self) -> TransferThread | None:
        """The thread of the KV endpoint; None without a KV transport."""
        return None if self._handoffs is None else self._handoffs.transfer

    # ------------------------------------------------------------------------------ from the router

    def open(self, session: RouterSession) -> None:
        self._answers.outbox.open(session, self._engine.kv.contents())

    def close(self, session: RouterSession) -> None:
        """The router has disconnected: abort all its requests."""
        self._answers.outbox.close(session)
        for job in self._answers.jobs.of(session):
            self.abort(job.id)

    def handle(self, session: RouterSession, command: worker_pb2.Command, arrived: float) -> None:
        """Execute one command. An error of one request fails that request, never the worker.

        `arrived`: when the command reached this process, on the handler's clock. A request's queue time
        starts then, even if the engine thread is busy with a step.
        """
        self._answers.outbox.handled(session)
        match command.WhichOneof("kind"):
            case "submit":
                submit = command.submit
                begin = self._prefill if submit.handoff else self._submit
                if submit.HasField("pull"):
                    begin = partial(self._pull, submit.pull, begin)
                self._starting.begin(session, submit.work, arrived, begin)
            case "reserve":
                reserve = command.reserve
                self._starting.begin(session, reserve.work, arrived, lambda job: self._reserve(job, reserve))
            case "encode":
                if self.images is not None:
                    self.images.order(session, command.encode, arrived, self._weights.refusal)
            case "load":
                self._load_adapter(command.load)
            case "abort":
                self.abort(command.abort.request_id)
            case "attach":
                self._attach(command.attach.ticket)
            case "migrate":
                self._migrate(command.migrate)
            case "share":
                self._share(session, command.share)
            case "fence":
                self._fence(command.fence)
            case "release":
                release = command.release
                self._engine.kv.release_session(release.tenant, release.key)
            case "drain":
                self.drain(command.drain.seconds)
            case None:
                log.warning("unknown kind of command: router and worker have different versions")

    def abort(self, request_id: RequestId) -> None:
        """Abort a request in any state. No-op if it has ended.

        The id may also be that of a migration: it is aborted, and the request continues here.
        """
        job = self._answers.jobs.get(request_id)
        if job is not None:
            self._answers.end(job, RequestOutcome.ABORTED)
            self._drop(job)
        elif self.images is not None and self.images.end(request_id):
            return
        elif self._handoffs is not None:
            self._handoffs.migrations.cancel(request_id)

    def drain(self, seconds: float, *, for_update: bool = False) -> None:
        """Report to every router that this worker is to get no requests, and to lose those that it has."""
        self._drained_until = self._clock() + seconds
        self._is_updating = for_update

    # ------------------------------------------------------------------------------ from the loop

    def on_step(self, output: StepOutput) -> None:
        handoffs = self._handoffs
        tokens = [
            (job, t) for t in output.tokens if (job := self._answers.jobs.get(t.request.id)) is not None
        ]
        for request, payload in output.outputs:
            if (job := self._answers.jobs.get(request.id)) is not None:
                self._answers.outbox.output(job, payload)
        for request in output.read:
            if (job := self._answers.jobs.get(request.id)) is not None:
                self._answers.outbox.ended(job, FinishReason.STOP)
                self._answers.end(job, RequestOutcome.FINISHED)
        for verified in output.verified:
            if (job := self._answers.jobs.get(verified.request.id)) is not None:
                job.verified = verified
        for request, encoding in output.encoded:
            self._answers.metrics.encode_seconds.observe(encoding.seconds)
            if (job := self._answers.jobs.get(request.id)) is not None:
                self._answers.outbox.encoded(job.session, job.id, job.arrival, encoding)
        # First tokens first: the router forwards tokens one by one, and TTFT matters most.
        for job, token in sorted(tokens, key=lambda pair: pair[0].reported_cached):
            # Another worker continues an answer whose KV is being sent: it ends there.
            elsewhere = handoffs is not None and handoffs.outgoing.continues_elsewhere(job.id)
            finish = None if elsewhere else token.finish
            self._answers.outbox.token(job, token, finish)
            if finish is not None:
                self._answers.end(job, RequestOutcome.FINISHED)
        for request, error in output.failed:
            if (job := self._answers.jobs.get(request.id)) is not None:
                self._answers.fail(job, code_of(error), str(error))
        self._report_preemptions(output)
        if handoffs is not None:
            self._engine.laps.lap(Cause.SEND)
            handoffs.on_step()
            self._engine.laps.lap(Cause.HANDOFF)
        if output.measured is not None:
            self._answers.outbox.measured(step_work_to_proto(output.measured))

    def _report_preemptions(self, output: StepOutput) -> None:
        now = self._clock() if output.preempted or output.resumed else 0.0
        for request in output.resumed:
            if (job := self._answers.jobs.get(request.id)) is not None:
                self._answers.outbox.resumed(job, now - job.preempted_at)
        for request in output.preempted:
            job = self._answers.jobs.get(request.id)
            if job is not None and (reason := request.scheduling.preempted_for) is not None:
                job.preempted_at = now
                self._answers.outbox.preempted(job, reason.value)

    def tick(self, now: float) -> None:
        """Handle expired deadlines. Runs before every step, and at `next_wakeup` when idle."""
        self._step_began = now
        if self.images is not None and self.images.turn(now):
            self._engine.laps.lap(Cause.ENCODE)
        if now >= self._drained_until:
            self._drained_until = math.inf
        for job in self._answers.jobs.overdue(now):
            self._drop(job)
            self._answers.fail(job, worker_pb2.FAILURE_CODE_DEADLINE, "the request's timeout passed")
        if self._handoffs is not None:
            self._engine.laps.lap(Cause.COMMANDS)
            self._handoffs.tick(now)
            self._engine.laps.lap(Cause.HANDOFF)

    def next_wakeup(self) -> float:
        """The next deadline for `tick`, on the handler's clock; math.inf: none."""
        deadline = min(
            self._answers.jobs.next_deadline(), self._engine.scheduler.promotions_until, self._drained_until
        )
        if self.images is not None:
            deadline = min(deadline, self.images.next_wakeup)
        if self._handoffs is None:
            return deadline
        return min(deadline, self._handoffs.next_wakeup())

    @property
    def idle(self) -> bool:
        """Whether there are no jobs and no outgoing pages. Pages in quarantine do not count: the page check
        accounts for them."""
        handoffs = self._handoffs
        encodes = self.images is not None and self.images.waiting_tokens
        return not self._answers.jobs and not encodes and not (handoffs and handoffs.are_sending)

    def cache_changes(self) -> list[CacheChange]:
        """Since the last call."""
        return self._engine.kv.take_changes()

    def load(self) -> worker_pb2.Load:
        load = load_to_proto(self._engine.stats())
        load.routers.extend(router_loads(self._answers.outbox.sessions, self._answers.jobs))
        load.encode_tokens = 0 if self.images is None else self.images.waiting_tokens
        load.draining = self._drained_until < math.inf
        load.updating = load.draining and self._is_updating
        if self._handoffs is not None:
            self._handoffs.incoming.add_load(load)
        return load

    def stats(self) -> worker_pb2.WorkerStats:
        unexpected = 0 if self._handoffs is None else self._handoffs.transfer.num_unexpected
        return stats_to_proto(self._engine.stats(), self._engine.pages_by_kind(), unexpected)

    def update_weights(
        self, request: worker_pb2.UpdateWeightsRequest, leave_at: float
    ) -> worker_pb2.WeightsReport | None:
        """See `WorkerWeights.update`. Requests that are here at `leave_at`, or later, end."""
        if self._clock() >= leave_at:
            for job in list(self._answers.jobs):
                self._drop(job)
                self._answers.fail(job, worker_pb2.FAILURE_CODE_WEIGHTS, "its worker gets other weights")
        report = self._weights.update(request.weights, lambda: self.idle)
        if report is not None and (report.incomplete or not report.refused):
            self._answers.outbox.updated(report.weights)
        return report

    def sleep(self, request: worker_pb2.SleepRequest) -> worker_pb2.SleepReport | None:
        """See `WorkerSleep.change`."""
        transport = None if self._handoffs is None else self._handoffs.transport
        return WorkerSleep(self._engine, self._weights, transport).change(request, lambda: self.idle)

    @property
    def staged_weights(self) -> StagedWeights:
        """For any thread."""
        return self._weights.staged

    def manage_cache(self, request: worker_pb2.ManageCacheRequest) -> worker_pb2.CacheReport:
        return manage_cache(self._engine, request, self._clock())

    # ------------------------------------------------------------------------------ from the KV endpoint

    def on_transfer(self, event: EndpointEvent) -> None:
        assert self._handoffs is not None
        self._engine.laps.lap(Cause.COMMANDS)
        match event:
            case Reopened(peer):
                self._answers.outbox.reopened(peer_to_proto(peer))
            case _:
                self._handoffs.on_transfer(event)
        self._engine.laps.lap(Cause.HANDOFF)

    # ------------------------------------------------------------------------------ the engine's hooks

    def on_started(self, requests: Sequence[Request]) -> None:
        """Reported before the step ends, so that the router reserves the handoff's pages during the step."""
        if self._handoffs is not None:
            self._handoffs.outgoing.on_started(requests)
            self._engine.laps.lap(Cause.HANDOFF)
        now, tiers = self._clock(), self._engine.kv.tiers
        for request in requests:
            if (job := self._answers.jobs.get(request.id)) is not None:
                use = None if tiers is None else tiers.use_of(request)
                self._answers.metrics.queue_seconds.observe(now - job.arrival)
                self._answers.outbox.started(job, now - job.arrival, use)
        self._answers.outbox.flush()

    def on_computed(self, request: Request, upto: int) -> None:
        """KV of tokens [0, upto) is in the pool."""
        if self._handoffs is not None:
            self._handoffs.outgoing.on_computed(request, upto)
            self._handoffs.migrations.on_computed(request, upto)
        if upto > len(request.prompt) or (job := self._answers.jobs.get(request.id)) is None:
            return
        if not (job.reported_cached or request.pinned):
            job.add_chunk(upto, self._step_began, self._clock())
        if upto < len(request.prompt):
            self._answers.outbox.progress(job, upto)

    def on_finished(self, request: Request) -> bool:
        """True keeps the request's pages until `engine.release`."""
        handoffs = self._handoffs
        return handoffs is not None and (
            handoffs.outgoing.on_finished(request) or handoffs.migrations.on_finished(request)
        )

    # ------------------------------------------------------------------------------ inside

    def _submit(self, job: Job) -> None:
        """Raises QueueFull or InvalidRequest."""
        self._engine.submit(job.request)

    def _prefill(self, job: Job) -> None:
        """Raises QueueFull or InvalidRequest."""
        self._with_transport().outgoing.submit(job.request)

    def _pull(self, message: worker_pb2.Pull, begin: Callable[[Job], None], job: Job) -> None:
        """Start a request when the KV of its prefix has come, or will not. Raises what `begin` raises."""
        pulled, source = self._with_transport().pulled, peer_from_proto(message.source)
        start = partial(self._starting.begin_late, job, begin)
        if not pulled.begin(message.handoff_id, job, source, message.num_tokens, start):
            begin(job)

    def _share(self, session: RouterSession, message: worker_pb2.Share) -> None:
        if self._handoffs is not None:
            report = partial(self._answers.outbox.shared, session)
            ticket, prompt = ticket_from_proto(message.ticket), prompt_from_proto(message)
            self._handoffs.shared.share(ticket, prompt, report)
        else:
            log.warning("Share for handoff %d, but there is no KV transport", message.ticket.handoff_id)

    def _reserve(self, job: Job, message: worker_pb2.Reserve) -> None:
        """Raises InvalidRequest or QueueFull."""
        self._with_transport().incoming.reserve(job, peer_from_proto(message.sender), message)

    def _with_transport(self) -> Handoffs:
        """Raises InvalidRequest without a transport."""
        if self._handoffs is None:
            raise UnservableRequest("this worker has no KV transport")
        return self._handoffs

    def _attach(self, ticket: worker_pb2.Ticket) -> None:
        if self._handoffs is not None:
            self._handoffs.outgoing.attach(ticket_from_proto(ticket))
        else:
            log.warning("Attach for handoff %d, but this worker has no KV transport", ticket.handoff_id)

    def _migrate(self, message: worker_pb2.Migrate) -> None:
        if self._handoffs is not None:
            self._handoffs.migrations.begin(message.request_id, ticket_from_proto(message.ticket))
        else:
            log.warning("Migrate for request %d, but this worker has no KV transport", message.request_id)

    def _fence(self, message: worker_pb2.Fence) -> None:
        """Fence a peer that was declared dead. No-op without a KV transport."""
        if self._handoffs is not None:
            self._handoffs.transfer.fence(message.epoch, message.reason)

    def _on_adapter(self, digest: bytes, refusal: str) -> None:
        """The adapter of these requests is loaded, or cannot be; none of them has started."""
        for job in [job for job in self._answers.jobs if job.request.adapter_digest == digest]:
            if refusal:
                self._drop(job)
                self._answers.fail(job, worker_pb2.FAILURE_CODE_ADAPTER, refusal)
            else:
                job.adapter_load_s = self._clock() - job.arrival

    def _drop(self, job: Job) -> None:
        """Stop a request and free its pages as soon as that is safe. Reports nothing to the router."""
        handoffs = self._handoffs
        if handoffs is None or not handoffs.drop(job.id):
            self._engine.abort(job.id)
