"""One try at one sequence: which worker is told what, and what each of its events means.

Events are acted upon when they come, and not when the client reads: a client that does not read must not hold
up a handoff, nor the stream that it shares with others. Only tokens wait for it, in one growing delta.

An attempt owns what it causes. However it is left (finished, failed, abandoned by the client), every worker
that may still hold something of it is told to abort.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from router.dispatch.failures import AttemptFailed, failure_of, loss_of, out_of_time, speaks_against
from router.dispatch.interface import Delta
from router.dispatch.route import Route
from router.dispatch.sequence import Sequence
from router.dispatch.waterfall import busy_seconds
from router.errors import RouterError
from router.workers.events import Event, WorkerLost
from router.workers.session import WorkerSession
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL

__all__ = ["Attempt", "DisaggAttempt", "MixedAttempt"]

Take: TypeAlias = Callable[[Event, Delta], None]
"""Takes one worker's event in, and adds to the delta. Raises what `Attempt.deltas` raises."""


@dataclass(slots=True, eq=False)
class _Part:
    """One worker's part in an attempt."""

    session: WorkerSession
    request_id: int
    tokens: int
    active: bool = True
    """It may hold something of the request: it counts as load, and is told when the attempt is given up."""
    begun: bool = False
    """It computes the request, which no longer queues there."""

    def ask(self, command: worker_pb2.Command) -> None:
        """Sends the command that makes the worker hold something of the request."""
        self.session.send(command)
        self.session.load.sent(self.session.num_sent, self.tokens)

    def done(self) -> None:
        """The worker did what it was asked for."""
        if self.active:
            self._end()
            self.session.health.request_done()

    def failed(self, failed: worker_pb2.Failed) -> AttemptFailed | RouterError:
        """The worker says that it cannot; returns what that means for the request."""
        self._end()
        if speaks_against(failed):
            self.session.health.request_failed()
        return failure_of(failed, self.session.worker_id)

    def lost(self, loss: WorkerLost) -> AttemptFailed:
        """The worker will say nothing any more; returns what that means for the request."""
        begun = self.begun and self.active
        self._end()
        return loss_of(loss, self.session.worker_id, begun=begun)

    def leave(self) -> None:
        self.session.forget(self.request_id)
        if self.active:
            self.session.abort(self.request_id)
            self._end()

    def _end(self) -> None:
        if self.active:
            self.active = False
            self.session.load.remove(self.tokens)


class Attempt(ABC):
    def __init__(self, sequence: Sequence, route: Route) -> None:
        self._sequence = sequence
        self._waterfall = sequence.waterfall
        self._route = route
        self._id = secrets.randbits(64)
        self._parts: list[_Part] = []
        self._delta = Delta()
        """What the client has not taken yet."""
        self._trouble: Exception | None = None
        """Raised once the client has that."""
        self._news = asyncio.Event()

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """New tokens up to the finish, merged when the client is slower than the workers.

        Raises AttemptFailed, and RouterError for what another attempt would not mend; tokens that came before
        are yielded first.
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
                delta, self._delta = self._delta, Delta()
                if delta.token_ids or delta.finish:
                    yield delta
                if delta.finish:
                    return
                if self._trouble is not None:
                    raise self._trouble
        finally:
            if reminder is not None:
                reminder.cancel()
            for part in self._parts:
                part.leave()
            self._route.tracker.ended()

    @abstractmethod
    def _begin(self) -> None:
        """Send the first commands."""

    @property
    @abstractmethod
    def awaited(self) -> WorkerSession:
        """The worker whose turn it is: if nothing happens, it is to blame."""

    def _on_event(self, take: Take, event: Event) -> None:
        if self._trouble is not None:
            return  # it is lost; what still comes is of no use
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

    def _enlist(self, role: worker_pb2.Role, take: Take) -> _Part:
        """A worker for this role, whose events go to `take`."""
        session = self._route.pick(role)
        part = _Part(session, self._id, self._sequence.num_tokens)
        session.load.add(part.tokens)
        self._parts.append(part)
        session.listen(self._id, partial(self._on_event, take))
        return part

    def _work(self) -> worker_pb2.Work:
        return self._sequence.work(self._id)

    def _take_tokens(self, tokens: worker_pb2.Tokens, at: float, delta: Delta) -> None:
        delta.token_ids.extend(tokens.ids)
        delta.logprobs.extend(tokens.logprobs)
        if tokens.ids:
            self._waterfall.tokens(len(tokens.ids), at)
            self._route.tracker.tokens(len(tokens.ids))
        if delta.cached_tokens is None:
            delta.cached_tokens = tokens.cached_tokens
        if tokens.finish:
            delta.finish = tokens.finish
            delta.stop_token = tokens.stop_token if tokens.HasField("stop_token") else None


class MixedAttempt(Attempt):
    """One worker does it all."""

    def _begin(self) -> None:
        self._worker = self._enlist(ROLE_DECODE, self._from_worker)
        self._waterfall.placed(self._worker.session.worker_id, None, self._route.why)
        self._worker.ask(worker_pb2.Command(submit=worker_pb2.Submit(work=self._work())))

    @property
    def awaited(self) -> WorkerSession:
        return self._worker.session

    def _from_worker(self, event: Event, delta: Delta) -> None:
        match event.message:
            case worker_pb2.Tokens() as tokens:
                self._take_tokens(tokens, event.at, delta)
                if tokens.finish:
                    self._worker.done()
            case worker_pb2.Started() as started:
                self._worker.begun = True
                self._waterfall.start(started, event.at)
            case worker_pb2.Failed() as failed:
                raise self._worker.failed(failed)
            case worker_pb2.Progress() as progress:
                self._route.tracker.progress(progress.num_computed)
            case WorkerLost() as loss:
                raise self._worker.lost(loss)
            case _:
                pass


class DisaggAttempt(Attempt):
    """A prefill worker computes the prompt and the first token, a decode worker the others.

    The decode worker is chosen, and its pages reserved, when the first chunk is being computed: a request
    that queues holds no memory there, and the choice is made on the freshest view of the load. From then
    on finished chunks travel beside the computation of the next ones. The first token goes to the client
    from the prefill worker, without waiting for the rest of the transfer.
    """

    def __init__(self, sequence: Sequence, route: Route, handoff_timeout_s: float) -> None:
        super().__init__(sequence, route)
        self._handoff_timeout_s = handoff_timeout_s
        self._decode: _Part | None = None
        self._has_first_token = False
        self._has_arrived = False
        self._early: list[tuple[worker_pb2.Tokens, float]] = []
        """Tokens of the decode worker that overtook the first one: two streams have no common order."""

    def _begin(self) -> None:
        self._prefill = self._enlist(ROLE_PREFILL, self._from_prefill)
        self._waterfall.placed(self._prefill.session.worker_id, None, self._route.why)
        submit = worker_pb2.Submit(work=self._work(), hand_over=True)
        self._prefill.ask(worker_pb2.Command(submit=submit))

    @property
    def awaited(self) -> WorkerSession:
        reserved = self._waterfall.reserved is not None
        if self._decode is None or (reserved and not self._has_first_token):
            return self._prefill.session
        return self._decode.session

    def _from_prefill(self, event: Event, delta: Delta) -> None:
        match event.message:
            case worker_pb2.Started() as started:
                self._prefill.begun = True
                self._waterfall.start(started, event.at)
                self._reserve()
            case worker_pb2.Tokens() as tokens:
                self._take_tokens(tokens, event.at, delta)
                if tokens.finish:
                    self._prefill.done()
                self._has_first_token = True
                for early, at in self._early:
                    self._take_tokens(early, at, delta)
                self._early.clear()
            case worker_pb2.Progress() as progress:
                self._route.tracker.progress(progress.num_computed)
            case worker_pb2.HandedOver() as handed_over:
                self._waterfall.hand_over(handed_over)
                seconds = busy_seconds((push.begin_s, push.end_s) for push in handed_over.pushes)
                self._route.tracker.handed_over(handed_over.bytes, seconds)
                self._prefill.done()
            case worker_pb2.Failed() as failed:
                trouble = self._prefill.failed(failed)
                if not self._is_independent:
                    raise trouble
            case WorkerLost() as loss:
                trouble = self._prefill.lost(loss)
                if not self._is_independent:
                    raise trouble
            case _:
                pass

    def _from_decode(self, event: Event, delta: Delta) -> None:
        decode = self._decode
        assert decode is not None
        match event.message:
            case worker_pb2.Reserved() as reserved:
                self._waterfall.reserve(event.at)
                decode.session.load.reserved(len(reserved.ticket.pages), decode.tokens)
                self._prefill.session.send(
                    worker_pb2.Command(attach=worker_pb2.Attach(ticket=reserved.ticket))
                )
            case worker_pb2.Arrived():
                decode.begun = True
                self._waterfall.arrive(event.at)
                self._has_arrived = True
                self._route.tracker.arrived()
                self._prefill.done()
            case worker_pb2.Tokens() as tokens:
                if tokens.finish:
                    decode.done()
                if self._has_first_token:
                    self._take_tokens(tokens, event.at, delta)
                else:
                    self._early.append((tokens, event.at))
            case worker_pb2.Failed() as failed:
                raise decode.failed(failed)
            case WorkerLost() as loss:
                raise decode.lost(loss)
            case _:
                pass

    @property
    def _is_independent(self) -> bool:
        """The decode worker has all it needs: whatever becomes of the prefill worker is of no matter."""
        return self._has_arrived and self._has_first_token

    def _reserve(self) -> None:
        self._decode = self._enlist(ROLE_DECODE, self._from_decode)
        self._waterfall.placed(
            self._prefill.session.worker_id, self._decode.session.worker_id, self._route.why
        )
        self._decode.ask(
            worker_pb2.Command(
                reserve=worker_pb2.Reserve(
                    work=self._work(),
                    sender=self._prefill.session.info.peer,
                    timeout_s=self._handoff_timeout_s,
                )
            )
        )
