"""One attempt at a sequence: its commands to workers and their events.

Events are handled when they arrive, not when the client reads: a slow client must not delay a handoff or the
worker's stream. Only its tokens wait (token_stream.py).

However an attempt ends (finished, failed, cancelled by the client), every worker that may hold state of it
gets an abort.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from router.dispatch.attempts.assignment import Assignment
from router.dispatch.attempts.migration import DRAIN, Migration
from router.dispatch.attempts.pull import Pull
from router.dispatch.attempts.token_order import Diverged, TokenOrder
from router.dispatch.failures import AttemptFailed, deadline_exceeded, lost_in_migration
from router.dispatch.request_status import RequestStatus, Stage
from router.dispatch.routing.route import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.token_stream import Delta
from router.dispatch.workers.events import Message, SessionListener, WorkerLost
from router.dispatch.workers.session import WorkerSession
from router.errors import Unavailable
from router.placement.account.load import TaskPhase
from rpc.baton.v1 import worker_pb2

_GROWTH_TOKENS: Final = 256
"""Tokens that may be decoded during a move. An answer that grows by more stays at its source."""

Handler: TypeAlias = Callable[[Message | WorkerLost, float], None]
"""Handles an event of one worker and its time. Raises what `Attempt.run` raises."""


class Attempt(ABC):
    def __init__(self, sequence: SequenceState, route: Route) -> None:
        self.sequence = sequence
        self.adapter, self.weights = sequence.adapter, sequence.weights
        self._waterfall = sequence.waterfall
        self._route = route
        self._id = secrets.randbits(64)
        self._assignments: list[Assignment] = []
        self.on_first_token: Callable[[int], None] = lambda cached: None
        """Called with the first token of this attempt."""
        self._has_tokens = False
        self._finished: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The finish reason, or the error that ends the attempt."""
        self._order = TokenOrder(sequence.output)
        self._migration: Migration | None = None  # the latest; at most one at a time
        self._decoder: Assignment | None = None  # decodes the answer and depends on no other worker
        self._computed_tokens = 0
        self._outputs: list[worker_pb2.Output] = []
        """Delivered with the first token: another attempt begins with the first of them again."""
        self._pull: Pull | None = None
        self._preempted: Assignment | None = None  # where the request was preempted, and waits
        self._resumed: Assignment | None = None  # where it is recomputed after that

    async def run(self) -> int:
        """Compute the sequence; its stream gets the tokens. Returns the finish reason.

        Raises AttemptFailed, or RouterError if another attempt would fail too.
        """
        deadline, reminder = self.sequence.deadline, None
        if deadline < math.inf:
            reminder = asyncio.get_running_loop().call_at(deadline, self.fail, deadline_exceeded())
        try:
            self._waterfall.attempt(time.monotonic())
            self._begin()
            return await self._finished
        finally:
            if reminder is not None:
                reminder.cancel()
            if self._migration is not None:
                self._migration.cancel()
            if self._pull is not None:
                self._pull.end()
            for assignment in self._assignments:
                assignment.abort()

    @abstractmethod
    def _begin(self) -> None:
        """Send the first commands."""

    @property
    @abstractmethod
    def awaited(self) -> WorkerSession:
        """The worker that must act next; a timeout is attributed to it."""

    def uses(self, worker_id: str) -> bool:
        """Whether the worker may hold state of the sequence."""
        return any(one.active and one.session.worker_id == worker_id for one in self._assignments)

    def status(self) -> RequestStatus:
        """The current stage of the sequence, and what it waits for."""
        if self._preempted is not None and self._preempted.active:
            session = self._preempted.session
            return RequestStatus(Stage.PREEMPTED, session.worker_id, session.load.waits_for)
        if self._resumed is not None and self._resumed.active:
            return self._prefilling_at(self._resumed)
        return self._status()

    @abstractmethod
    def _status(self) -> RequestStatus:
        """`status` of a sequence that does not wait or recompute because it was preempted."""

    @property
    def decoder(self) -> WorkerSession | None:
        """The worker that decodes the answer and depends on no other; None before that, and during a move."""
        assignment, migration = self._decoder, self._migration
        if migration is not None and not migration.is_over(self._order.position):
            return None
        return None if assignment is None or not assignment.active else assignment.session

    @property
    def tokens_to_reserve(self) -> int:
        """Prompt, answer so far, and room for tokens that are decoded during the move."""
        return len(self.sequence.prompt) + self._order.position + self._growth

    @property
    def _growth(self) -> int:
        return min(_GROWTH_TOKENS, self.sequence.sampling.max_tokens - self._order.position)

    async def migrate(self, session: WorkerSession, timeout_s: float) -> bool:
        """Move the running answer and its KV to another worker; returns whether it has moved.

        The source decodes meanwhile. It keeps the answer if the move fails or takes longer than `timeout_s`.
        """
        source = self._decoder
        if source is None or self.decoder in (None, session) or not session.info.transport:
            return False
        if self._migration is not None and self._migration.has_arrived:
            self._migration.source.abort()  # it may still decode the answer, too
        target = self._assignment(session, secrets.randbits(64), self.tokens_to_reserve, TaskPhase.INCOMING)
        migration = self._migration = Migration(source, target)
        self._listen(target, partial(self._from_target, migration))
        reserve = worker_pb2.Reserve(
            work=self.sequence.awaited(target.request_id),
            sender=source.session.info.peer,
            timeout_s=timeout_s,
            room_tokens=self._growth,
            no_wait=True,
        )
        target.send(worker_pb2.Command(reserve=reserve))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(migration.done)
        except TimeoutError:
            return False
        finally:
            self._cancel_migration(migration)

    def _from_target(self, migration: Migration, message: Message | WorkerLost, at: float) -> None:
        target = migration.target
        match message:
            case worker_pb2.Reserved() as reserved:
                target.session.load.reserved(len(reserved.ticket.pages), target.task.tokens)
                migrate = worker_pb2.Migrate(request_id=migration.source.request_id, ticket=reserved.ticket)
                migration.source.session.send(worker_pb2.Command(migrate=migrate))
            case worker_pb2.Arrived() as arrived:
                target.is_running = True
                self._decoder = target
                target.task.arrived(len(self.sequence.prompt) + arrived.position)
                self._waterfall.moved(target.session.worker_id, DRAIN, at)
                self._waterfall.adapter_loaded(target.session.worker_id, arrived.adapter_load_s)
                migration.arrived(arrived.position)
            case worker_pb2.HandedOff():
                self._on_source_sent(target)
            case worker_pb2.Failed() as failed:
                self._assignment_failed(target, target.failed(failed))
            case WorkerLost() as loss:
                self._assignment_failed(target, target.lost(loss))
            case _:
                pass

    def _on_source_sent(self, assignment: Assignment) -> None:
        """The source of a move has sent all KV and released the request."""
        assignment.done()
        if self._migration is not None and self._migration.is_lost:
            raise lost_in_migration()

    def _cancel_migration(self, migration: Migration) -> None:
        migration.cancel()
        if migration.is_lost:
            self.fail(lost_in_migration())

    def _assignment_failed(self, assignment: Assignment, error: Exception) -> None:
        """A worker failed. Raises `error` unless the attempt continues without that worker."""
        migration = self._migration
        if migration is not None and assignment is migration.target and not migration.has_arrived:
            self._cancel_migration(migration)
        elif not (
            migration is not None
            and assignment is migration.source
            and migration.covers(self._order.position)
        ):
            raise error

    def _listen(self, assignment: Assignment, handle: Handler) -> None:
        """Let `handle` get the worker's events, except those that all workers report alike."""
        listener = SessionListener(
            partial(self._on_event, assignment, handle), partial(self._on_output, assignment)
        )
        assignment.session.listen(assignment.request_id, listener)

    def _on_event(
        self, assignment: Assignment, handle: Handler, message: Message | WorkerLost, at: float
    ) -> None:
        if self._finished.done():
            return
        try:
            match message:
                case worker_pb2.Wanted() as wanted:
                    if self._pull is not None:
                        self._pull.share(wanted.ticket, self.sequence.prototype)
                case worker_pb2.Encoded() as encoded:
                    self._waterfall.encoded(encoded, assignment.sent_at)
                case worker_pb2.Preempted() as preempted:
                    self._preempt(assignment, preempted, at)
                case worker_pb2.Resumed() as resumed:
                    self._resume(assignment, resumed)
                case _:
                    handle(message, at)
        except Exception as error:  # raised by `run`: it must not end the reader of the worker's stream
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Make `run` raise this error, unless it has ended."""
        if not self._finished.done():
            self._finished.set_exception(error)
            self._finished.exception()  # retrieved: a cancelled `run` does not wait for it

    def _assign(self, role: worker_pb2.Role, handle: Handler, phase: TaskPhase) -> Assignment:
        """Pick a worker for a role; `handle` gets its events."""
        assignment = self._assignment(self._route.pick(role), self._id, self.sequence.num_tokens, phase)
        self._listen(assignment, handle)
        return assignment

    def _submit(self, assignment: Assignment, *, handoff: bool = False) -> None:
        """Have a worker compute the prompt, after it has got what another one has cached of it."""
        submit = worker_pb2.Submit(work=self.sequence.work(self._id), handoff=handoff)
        source = self._route.source
        if source is not None and source.session.alive and source.session is not assignment.session:
            self._pull = Pull(source, assignment.session.key, self._route.on_transfer)
            submit.pull.CopyFrom(self._pull.request())
        assignment.send(worker_pb2.Command(submit=submit))

    def _assignment(
        self, session: WorkerSession, request_id: int, tokens: int, phase: TaskPhase
    ) -> Assignment:
        load = session.load
        blocks = self.sequence.blocks(load.page_size)[: tokens // load.page_size]
        task = load.begin(
            phase,
            tokens,
            cached=load.cached.matching_tokens(blocks),
            blocks=blocks,
            arrived_at=self._waterfall.arrival,
            now=time.monotonic(),
            images=self.sequence.images,
        )
        assignment = Assignment(session, request_id, task, self.adapter)
        self._assignments.append(assignment)
        return assignment

    def _queued_on(self, assignment: Assignment) -> RequestStatus:
        return RequestStatus(Stage.QUEUE, assignment.session.worker_id, assignment.session.load.waits_for)

    def _prefilling_at(self, assignment: Assignment) -> RequestStatus:
        return RequestStatus(
            Stage.PREFILL, assignment.session.worker_id, computed_tokens=self._computed_tokens
        )

    def _decoding_at(self, session: WorkerSession) -> RequestStatus:
        return RequestStatus(Stage.DECODE, session.worker_id, computed_tokens=len(self.sequence.prompt))

    def _start(self, assignment: Assignment, started: worker_pb2.Started, at: float) -> None:
        assignment.is_running = True
        self._computed_tokens = started.cached_tokens
        self._waterfall.start(started, at)
        self._waterfall.adapter_loaded(assignment.session.worker_id, started.adapter_load_s)
        if came_up := sum(tokens for place, tokens in started.promoted.items() if place != "peer"):
            self._route.on_promotion(assignment.session.key, came_up, started.promotion_s)

    def _preempt(self, assignment: Assignment, preempted: worker_pb2.Preempted, at: float) -> None:
        self._preempted, self._resumed, self._computed_tokens = assignment, None, 0
        self._waterfall.preempted(assignment.session.worker_id, preempted.reason, at)

    def _resume(self, assignment: Assignment, resumed: worker_pb2.Resumed) -> None:
        self._preempted, self._resumed = None, assignment
        self._waterfall.resumed(resumed.waited_s)

    def _progress(self, assignment: Assignment, progress: worker_pb2.Progress) -> None:
        self._computed_tokens = progress.num_computed
        assignment.task.progressed(progress.num_computed)

    @abstractmethod
    def _decodes(self, assignment: Assignment) -> None:
        """A worker begins to send tokens."""

    def _on_output(self, assignment: Assignment, output: worker_pb2.Output, at: float) -> None:
        """Append new tokens to the stream, and keep what else the request gets.

        The hot path: everything else is behind a comparison.
        """
        if self._finished.done():
            return
        if not output.HasField("tokens"):
            self.sequence.take(output, self._outputs)
            return
        tokens = output.tokens
        try:
            if not assignment.has_tokens:
                assignment.has_tokens = True
                self._decodes(assignment)
            migration = self._migration
            if migration is not None and assignment is migration.source and migration.covers(tokens.position):
                assignment.abort()  # the source has not noticed that the move is complete, and still decodes
                return
            self._resumed = None
            assignment.task.produced(len(tokens.ids))
            if tokens.finish:
                assignment.done()
            if tokens.chunks:
                self._waterfall.computed(tokens.chunks, assignment.sent_at)
            stream = self.sequence.stream
            for event, arrived in self._order.take(tokens, at):
                if event.ids:
                    self._waterfall.tokens(len(event.ids), arrived, assignment.session.arrival)
                if event.drafted or event.finish or not self._has_tokens:
                    self._note(event, stream.delta, arrived)
                stream.delta.token_ids.extend(event.ids)
                if event.logprobs:
                    stream.delta.logprobs.extend(event.logprobs)
                stream.changed()
        except Diverged as error:
            failed = Unavailable("two workers computed this answer differently")
            self.fail(AttemptFailed(str(error), assignment.session.worker_id, failed))
        except Exception as error:  # as in `_on_event`
            self.fail(error)

    def _note(self, tokens: worker_pb2.Tokens, delta: Delta, at: float) -> None:
        """What first tokens, last tokens and verified drafts say besides their ids."""
        if tokens.drafted:
            self._waterfall.drafted(tokens.drafted, tokens.accepted)
            if tokens.predicted:
                delta.accepted_predicted += tokens.accepted
                delta.rejected_predicted += tokens.drafted - tokens.accepted
        if not self._has_tokens:
            self._has_tokens = True
            if tokens.position == 0:
                delta.outputs = self._outputs + delta.outputs
                delta.cached_tokens = tokens.cached_tokens
            delta.outputs.extend(self.sequence.begun(tokens.position))
            self.on_first_token(tokens.cached_tokens)
        if tokens.finish:
            if self.sequence.is_prefill_only:
                self._waterfall.read(at)
            delta.finish = tokens.finish
            delta.stop_token = tokens.stop_token if tokens.HasField("stop_token") else None
            if not self._finished.done():
                self._finished.set_result(tokens.finish)
