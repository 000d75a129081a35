"""One attempt at a sequence: its commands to workers and their events.

Events are handled when they arrive, not when the client reads: a slow client must not delay a handoff or the
worker's stream. Only its tokens wait, merged into one delta.

However an attempt ends (finished, failed, cancelled by the client), every worker that may hold state of it
gets an abort.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import TypeAlias

from router.dispatch.attempts.move import Move
from router.dispatch.attempts.part import Part
from router.dispatch.attempts.token_order import Diverged, TokenOrder
from router.dispatch.evacuation import DRAIN, AnswerProgress
from router.dispatch.failures import AttemptFailed, moved_to_nobody, out_of_time
from router.dispatch.interface import Delta
from router.dispatch.routing.route import Route
from router.dispatch.routing.worker_choice import GROWTH_TOKENS
from router.dispatch.sequence import Sequence
from router.dispatch.standing import Stage, Standing
from router.errors import Unavailable
from router.workers.events import Event, WorkerLost
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE

__all__ = ["Attempt", "MixedAttempt", "Take"]

Take: TypeAlias = Callable[[Event, Delta], None]
"""Handles an event of one worker and adds to the delta. Raises what `Attempt.deltas` raises."""


class Attempt(ABC):
    def __init__(self, sequence: Sequence, route: Route) -> None:
        self._sequence = sequence
        self._waterfall = sequence.waterfall
        self._route = route
        self._id = secrets.randbits(64)
        self._parts: list[Part] = []
        self._delta = Delta()
        """New tokens that the client has not read yet."""
        self._trouble: Exception | None = None
        """Raised after the client has read them."""
        self._news = asyncio.Event()
        self._order = TokenOrder(len(sequence.output))
        self._move: Move | None = None  # the latest; the next begins when it is over
        self._writer: Part | None = None  # computes the answer by itself
        self._computed_tokens = 0

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """New tokens up to the finish, merged when the client is slower than the workers.

        Raises AttemptFailed, or RouterError if another attempt would fail too, after yielding the tokens that
        arrived before.
        """
        deadline, reminder = self._sequence.deadline, None
        if deadline < math.inf:
            reminder = asyncio.get_running_loop().call_at(deadline, self._on_deadline)
        try:
            self._waterfall.attempt(time.monotonic())
            self._begin()
            while True:
                await self._news.wait()
                self._news.clear()
                # What fails while the client reads this delta is raised after the next one.
                delta, self._delta, trouble = self._delta, Delta(), self._trouble
                if delta.token_ids or delta.finish:
                    yield delta
                if delta.finish:
                    return
                if trouble is not None:
                    raise trouble
        finally:
            if reminder is not None:
                reminder.cancel()
            if self._move is not None:
                self._move.call_off()
            for part in self._parts:
                part.leave()
            self._route.tracker.ended()

    @abstractmethod
    def _begin(self) -> None:
        """Send the first commands."""

    @property
    @abstractmethod
    def awaited(self) -> WorkerSession:
        """The worker that must act next; a timeout is attributed to it."""

    @abstractmethod
    def standing(self) -> Standing:
        """Where the sequence is now, and what it waits for."""

    @property
    def writer(self) -> WorkerSession | None:
        """The worker that computes the answer by itself; None before there is one, and during a move."""
        part, move = self._writer, self._move
        if move is not None and not move.is_over(self._order.position):
            return None
        return None if part is None or not part.active else part.session

    @property
    def tokens_to_reserve(self) -> int:
        """Of the prompt, and of the answer so far and while it moves."""
        return len(self._sequence.prompt) + self._order.position + self._growth

    @property
    def _growth(self) -> int:
        return min(GROWTH_TOKENS, self._sequence.sampling.max_tokens - self._order.position)

    @property
    def progress(self) -> AnswerProgress:
        position = self._order.position
        return AnswerProgress(
            context_tokens=len(self._sequence.prompt) + position,
            output_tokens=position,
            max_tokens=self._sequence.sampling.max_tokens,
        )

    async def move(self, session: WorkerSession, timeout_s: float, reason: str = DRAIN) -> bool:
        """Has another worker go on with the answer, from its KV; whether that one has it now.

        The answer goes on meanwhile. It stays where it is if that fails or takes longer than `timeout_s`.
        """
        source = self._writer
        if source is None or self.writer in (None, session) or not session.info.transport:
            return False
        if self._move is not None and self._move.has_arrived:
            self._move.source.leave()  # it may have gone on, too
        target = self._part(session, secrets.randbits(64), self.tokens_to_reserve)
        move = self._move = Move(source, target, reason)
        session.listen(target.request_id, partial(self._on_event, partial(self._from_target, move)))
        reserve = worker_pb2.Reserve(
            work=self._work_so_far(target.request_id),
            sender=source.session.info.peer,
            timeout_s=timeout_s,
            room_tokens=self._growth,
            no_wait=True,
        )
        target.ask(worker_pb2.Command(reserve=reserve))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(move.done)
        except TimeoutError:
            return False
        finally:
            self._call_off(move)

    def _from_target(self, move: Move, event: Event, delta: Delta) -> None:
        target = move.target
        match event.message:
            case worker_pb2.Reserved() as reserved:
                target.session.load.reserved(len(reserved.ticket.pages), target.tokens)
                migrate = worker_pb2.Migrate(request_id=move.source.request_id, ticket=reserved.ticket)
                move.source.session.send(worker_pb2.Command(migrate=migrate))
            case worker_pb2.Arrived() as arrived:
                target.begun = True
                self._writer = target
                self._route.tracker.moved(target.session)
                self._waterfall.moved(target.session.worker_id, move.reason, event.at)
                move.arrived(arrived.position)
            case worker_pb2.Tokens() as tokens:
                self._take_tokens(target, tokens, event.at, delta)
            case worker_pb2.HandedOver():
                self._hand_over(target)
            case worker_pb2.Failed() as failed:
                self._lose(target, target.failed(failed))
            case WorkerLost() as loss:
                self._lose(target, target.lost(loss))
            case _:
                pass

    def _hand_over(self, part: Part) -> None:
        """The source of a move has given the answer away."""
        part.done()
        if self._move is not None and self._move.is_lost:
            self._trouble = moved_to_nobody()

    def _call_off(self, move: Move) -> None:
        move.call_off()
        if move.is_lost and self._trouble is None:
            self._trouble = moved_to_nobody()
            self._news.set()

    def _lose(self, part: Part, trouble: Exception) -> None:
        """A part came to nothing. Raises `trouble` unless the answer goes on without it."""
        move = self._move
        if move is not None and part is move.target and not move.has_arrived:
            self._call_off(move)
        elif not (move is not None and part is move.source and move.covers(self._order.position)):
            raise trouble

    def _on_event(self, take: Take, event: Event) -> None:
        if self._trouble is not None:
            return  # the attempt is over; ignore later events
        try:
            take(event, self._delta)
        except Exception as trouble:  # for the client of this request, not for the reader of the stream
            self._trouble = trouble
        if self._delta.token_ids or self._delta.finish or self._trouble:
            self._news.set()

    def _on_deadline(self) -> None:
        if self._trouble is None:
            self._trouble = out_of_time()
        self._news.set()

    def _enlist(self, role: worker_pb2.Role, take: Take, tokens: int | None = None) -> Part:
        """A worker for this role, whose events go to `take`. `tokens`: None: of the whole sequence."""
        part = self._part(self._route.pick(role), self._id, tokens or self._sequence.num_tokens)
        part.session.listen(self._id, partial(self._on_event, take))
        return part

    def _part(self, session: WorkerSession, request_id: int, tokens: int) -> Part:
        page_size = session.cached.page_size
        blocks = self._sequence.blocks(page_size)[: tokens // page_size]
        part = Part(session, request_id, tokens, tokens - session.cached.matching_tokens(blocks), blocks)
        session.load.add(part.fresh)
        session.cached.expect(blocks)
        self._parts.append(part)
        return part

    def _queued_at(self, part: Part) -> Standing:
        return Standing(Stage.QUEUE, part.session.worker_id, part.session.load.waits_for)

    def _read_at(self, part: Part) -> Standing:
        return Standing(Stage.PREFILL, part.session.worker_id, computed_tokens=self._computed_tokens)

    def _written_at(self, session: WorkerSession) -> Standing:
        return Standing(Stage.DECODE, session.worker_id, computed_tokens=len(self._sequence.prompt))

    def _start(self, part: Part, started: worker_pb2.Started, at: float) -> None:
        part.begun = True
        self._computed_tokens = started.cached_tokens
        self._waterfall.start(started, at)

    def _progress(self, progress: worker_pb2.Progress) -> None:
        self._computed_tokens = progress.num_computed
        self._route.tracker.progress(progress.num_computed)

    def _work(self) -> worker_pb2.Work:
        return self._sequence.work(self._id)

    def _work_so_far(self, request_id: int) -> worker_pb2.Work:
        """With all tokens that came, whether the client has taken them or not."""
        work = self._sequence.work(request_id)
        del work.output[self._order.begin :]
        work.output.extend(self._order.tokens)
        return work

    def _take_tokens(self, part: Part, tokens: worker_pb2.Tokens, at: float, delta: Delta) -> None:
        move = self._move
        if move is not None and part is move.source and move.covers(tokens.position):
            part.leave()  # it did not hear that the other worker has the answer, and went on
            return
        if tokens.finish:
            part.done()
        if tokens.chunks:
            self._waterfall.computed(tokens.chunks, part.asked)
        try:
            ready = self._order.take(tokens, at)
        except Diverged as error:
            failed = Unavailable("two workers computed this answer differently")
            raise AttemptFailed(str(error), part.session.worker_id, failed) from None
        for event, came in ready:
            self._give(event, came, delta)

    def _cached_tokens(self, first: worker_pb2.Tokens) -> int:
        """Prompt tokens that did not have to be computed; `first`: the event of the first new token."""
        return first.cached_tokens

    def _give(self, tokens: worker_pb2.Tokens, at: float, delta: Delta) -> None:
        delta.token_ids.extend(tokens.ids)
        delta.logprobs.extend(tokens.logprobs)
        if tokens.ids:
            self._waterfall.tokens(len(tokens.ids), at)
            self._route.tracker.tokens(len(tokens.ids))
        if delta.cached_tokens is None:
            delta.cached_tokens = self._cached_tokens(tokens)
        if tokens.finish:
            delta.finish = tokens.finish
            delta.stop_token = tokens.stop_token if tokens.HasField("stop_token") else None


class MixedAttempt(Attempt):
    """One worker prefills and decodes."""

    def _begin(self) -> None:
        self._worker = self._enlist(ROLE_DECODE, self._from_worker)
        self._waterfall.placed(self._worker.session.worker_id, None, self._route.why)
        self._worker.ask(worker_pb2.Command(submit=worker_pb2.Submit(work=self._work())))

    @property
    def awaited(self) -> WorkerSession:
        return (self._writer or self._worker).session

    def standing(self) -> Standing:
        if self._writer is not None:
            return self._written_at(self.awaited)
        return self._read_at(self._worker) if self._worker.begun else self._queued_at(self._worker)

    def _from_worker(self, event: Event, delta: Delta) -> None:
        match event.message:
            case worker_pb2.Tokens() as tokens:
                self._writer = self._writer or self._worker
                self._take_tokens(self._worker, tokens, event.at, delta)
            case worker_pb2.HandedOver():
                self._hand_over(self._worker)
            case worker_pb2.Started() as started:
                self._start(self._worker, started, event.at)
            case worker_pb2.Failed() as failed:
                self._lose(self._worker, self._worker.failed(failed))
            case worker_pb2.Progress() as progress:
                self._progress(progress)
            case WorkerLost() as loss:
                self._lose(self._worker, self._worker.lost(loss))
            case _:
                pass
