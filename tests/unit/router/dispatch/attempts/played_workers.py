"""Workers as an attempt of the router sees them, played step by step: the caller decides what happens when.

The token at a position of the answer is a function of the position. Commands and events travel in order for
each worker, and in no order among them; KV travels as `Handoff`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from rpc.baton.v1 import sampling_pb2, worker_pb2
from tests.unit.router.dispatch.attempts.fake_session import FakeSession

PAGE = 4


def token_at(position: int) -> int:
    return 100 + 7 * position % 50


class Stage(Enum):
    WAITING = auto()  # the ticket is not at the source, or the source has not computed everything
    ACCEPTED = auto()  # the target has everything and goes on; the source has not heard of it
    OVER = auto()


@dataclass(eq=False, repr=False)
class Handoff:
    """A handoff, by the id of its reservation."""

    target: PlayedWorker
    work: worker_pb2.Work
    source: PlayedWorker | None = None
    job: Job | None = None
    stage: Stage = Stage.WAITING


@dataclass(eq=False, repr=False)
class Job:
    """A request that a worker computes, or has computed for another one."""

    work: worker_pb2.Work
    hand_off: bool = False
    started: bool = False
    computed: bool = False
    """The prompt, as far as it is to be computed here."""
    have: int = 0
    """Tokens of the answer."""
    move: Handoff | None = None

    @property
    def is_done(self) -> bool:
        return self.have >= self.work.sampling.max_tokens


class PlayedWorker(FakeSession):
    """The session with a worker, and the worker behind it."""

    def __init__(self, worker_id: str, network: dict[int, Handoff]) -> None:
        """`network`: the handoffs of all workers that are not over."""
        super().__init__(
            worker_pb2.WorkerInfo(worker_id=worker_id, page_size=PAGE, transport="played"),
            max_running_requests=8,
        )
        self.network = network
        self.events: deque[Any] = deque()
        self.jobs: dict[int, Job] = {}

    # ------------------------------------------------------------------------------ what happens

    def deliver(self) -> None:
        """The router has the next event."""
        event = self.events.popleft()
        self.notify(event.request_id, event)

    def end(self) -> None:
        """The process ends, and its peers and the router notice."""
        self.alive = False
        self.events.clear()
        for handoff in list(self.network.values()):
            if handoff.source is self or (handoff.target is self and handoff.source is not None):
                self.fail(handoff)
            elif handoff.target is self:
                del self.network[handoff.work.request_id]
        self.jobs.clear()
        self.lose()

    def obey(self) -> None:
        """Carries out the next command."""
        command = self.commands.popleft()
        match command.WhichOneof("kind"):
            case "submit":
                submit = command.submit
                assert all(item.arrays for item in submit.work.media)
                job = Job(submit.work, submit.handoff, have=len(submit.work.output))
                self.jobs[submit.work.request_id] = job
            case "reserve":
                work = command.reserve.work
                assert not any(item.arrays for item in work.media)
                self.network[work.request_id] = Handoff(self, work)
                ticket = worker_pb2.Ticket(handoff_id=work.request_id, pages=[1])
                self.events.append(worker_pb2.Reserved(request_id=work.request_id, ticket=ticket))
            case "attach":
                handoff_id = command.attach.ticket.handoff_id
                self._attach(handoff_id, self.jobs.get(handoff_id))
            case "migrate":
                self._migrate(command.migrate)
            case "abort":
                self._abort(command.abort.request_id)

    def refuse(self) -> None:
        """The next command is a reservation, for which there is no room."""
        work = self.commands.popleft().reserve.work
        self._failed(work.request_id, worker_pb2.FAILURE_CODE_OVERLOADED)

    def compute(self, job: Job) -> None:
        """Something of a request: it starts, its prompt is computed, or its next token."""
        request_id = job.work.request_id
        if not job.started:
            job.started = True
            self.events.append(worker_pb2.Started(request_id=request_id))
            return
        job.computed = True
        finish = sampling_pb2.FINISH_REASON_UNSPECIFIED
        position, job.have = job.have, job.have + 1
        if job.is_done:
            finish = sampling_pb2.FINISH_REASON_LENGTH
            del self.jobs[request_id]
        self.events.append(
            worker_pb2.Output(
                request_id=request_id,
                tokens=worker_pb2.Tokens(ids=[token_at(position)], position=position, finish=finish),
            )
        )
        if finish:
            for handoff in list(self.network.values()):
                if handoff.job is job:
                    self.fail(handoff, worker_pb2.FAILURE_CODE_SENDER)

    def can_compute(self) -> list[Job]:
        """Requests of which something is to be computed. One that is paused for its move is none of them."""
        return [
            job
            for job in self.jobs.values()
            if not (job.hand_off and job.computed) and not (job.move and job.move.stage is Stage.ACCEPTED)
        ]

    def can_accept(self) -> list[Handoff]:
        """Handoffs of this source that may arrive now."""
        return [
            handoff
            for handoff in self.network.values()
            if handoff.source is self
            and handoff.stage is Stage.WAITING
            and handoff.job is not None
            and handoff.job.computed
        ]

    def accept(self, handoff: Handoff) -> None:
        """All KV is at the target, which goes on."""
        source = handoff.job
        assert source is not None
        handoff.stage = Stage.ACCEPTED
        request_id = handoff.work.request_id
        handoff.target.jobs[request_id] = Job(handoff.work, started=True, computed=True, have=source.have)
        handoff.target.events.append(worker_pb2.Arrived(request_id=request_id, position=source.have))

    def confirm(self, handoff: Handoff) -> None:
        """The source hears that the target goes on."""
        self._over(handoff)
        assert handoff.job is not None
        source_id = handoff.job.work.request_id
        if self.jobs.pop(source_id, None) is not None:
            self.events.append(worker_pb2.HandedOff(request_id=source_id))

    def fail(self, handoff: Handoff, code: worker_pb2.FailureCode = worker_pb2.FAILURE_CODE_HANDOFF) -> None:
        """The two do not reach each other, or one gives up. A target that has everything goes on."""
        arrived = handoff.stage is Stage.ACCEPTED
        self._over(handoff)
        source, job = handoff.source, handoff.job
        if source is not None and source.alive and job is not None and job.hand_off:
            source._lose_handoff(job)
        if handoff.target.alive and not arrived:
            handoff.target._failed(handoff.work.request_id, code)

    # ------------------------------------------------------------------------------ inside

    def _attach(self, handoff_id: int, job: Job | None) -> None:
        handoff = self.network.get(handoff_id)
        if handoff is None:
            if job is not None and job.hand_off:
                self._lose_handoff(job)
            return
        handoff.source, handoff.job = self, job
        if job is None:
            self.fail(handoff, worker_pb2.FAILURE_CODE_SENDER)

    def _migrate(self, migrate: worker_pb2.Migrate) -> None:
        job = self.jobs.get(migrate.request_id)
        if job is not None and (job.hand_off or not job.computed or job.move is not None):
            job = None
        self._attach(migrate.ticket.handoff_id, job)
        if job is not None:
            job.move = self.network.get(migrate.ticket.handoff_id)

    def _abort(self, request_id: int) -> None:
        job = self.jobs.pop(request_id, None)
        handoff = self.network.get(request_id)
        if handoff is not None and handoff.target is self and handoff.stage is Stage.WAITING:
            self.network.pop(request_id)
            handoff.stage = Stage.OVER
            if handoff.job is not None:
                handoff.job.move = None
                if handoff.job.hand_off and handoff.source is not None:
                    handoff.source._lose_handoff(handoff.job)
        elif handoff is not None and handoff.source is self and handoff.job is not None and job is None:
            self.fail(handoff)  # the id of a move: the request goes on here
        if job is not None:
            for other in list(self.network.values()):
                if other.job is job:
                    self.fail(other)

    def _lose_handoff(self, job: Job) -> None:
        if self.jobs.pop(job.work.request_id, None) is not None:
            self._failed(job.work.request_id, worker_pb2.FAILURE_CODE_HANDOFF)

    def _over(self, handoff: Handoff) -> None:
        handoff.stage = Stage.OVER
        self.network.pop(handoff.work.request_id, None)
        if handoff.job is not None and handoff.job.move is handoff:
            handoff.job.move = None

    def _failed(self, request_id: int, code: worker_pb2.FailureCode) -> None:
        self.events.append(worker_pb2.Failed(request_id=request_id, code=code, message="played"))
