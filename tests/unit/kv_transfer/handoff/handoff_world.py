"""A simulation of two workers that hand requests over to each other, of the router, and of a bad network.

`HandoffWorld` plays the engines and the router, and checks the events of each handoff. The caller decides
what happens when.
"""

from __future__ import annotations

import numpy as np

from common.kv_groups import NO_PAGE
from kv_transfer import (
    CaughtUp,
    Drained,
    HandedOff,
    HandoffState,
    KVLayout,
    Peer,
    Ready,
    ReceiveFailed,
    ReceiverEvent,
    Reopened,
    SenderEvent,
    SendFailed,
    Ticket,
)
from kv_transfer.errors import PeerUnreachable
from kv_transfer.handoff.messages import (
    Body,
    Confirm,
    Digests,
    Drain,
    Finish,
    HandoffMessage,
    Push,
    Revoke,
    encode,
)
from kv_transfer.integrity.digest import HostDigester
from kv_transfer.ticket_pages import digest_blocks
from tests.kv_network import InFlightMessage, Network
from tests.kv_workers import Job, Use, Worker, page_view, pass_by, run_model, token_kv

TIMEOUT_S = 10.0
FENCED = "the test says so"


class HandoffWorld:
    def __init__(self, layout: KVLayout) -> None:
        self.layout = layout
        self.unnoticed: list[str] = []
        self.network = Network(unnoticed=self.unnoticed)
        self.now = 0.0
        self.epochs = 0
        self.num_verified = 0
        """Pages of failed handoffs that could be used."""
        self.jobs: list[Job] = []
        self.tickets: list[Ticket] = []
        self.fenced: list[int] = []
        """Epochs; a worker that comes is told of them first of all."""
        self.workers = [Worker(self.network, self.next_epoch(), layout) for _ in range(2)]

    def next_epoch(self) -> int:
        self.epochs += 1
        return self.epochs

    # ----------------------------------------------------------------------------------- requests by state

    def current(self) -> list[Job]:
        """Jobs of workers that live."""
        return [job for job in self.jobs if job.source is self.workers[job.place]]

    def unopened(self) -> list[Job]:
        return [job for job in self.current() if not job.opened and not job.ended]

    def unreserved(self) -> list[Job]:
        return [job for job in self.jobs if job.target is None]

    def computing(self) -> list[Job]:
        return [
            job for job in self.current() if job.opened and not job.runs and not job.finished and not job.sent
        ]

    def running(self) -> list[Job]:
        return [job for job in self.current() if job.runs and not job.ended]

    def decoding(self) -> list[Job]:
        return [job for job in self.current() if job.decodes]

    def movable(self) -> list[Job]:
        return [job for job in self.current() if job.decodes and job.opened and not job.finished]

    def stopped(self) -> list[Job]:
        return [job for job in self.current() if job.stopped and not job.ended]

    def held(self) -> list[Job]:
        return [job for worker in self.workers for job, use in worker.used.values() if use is Use.HELD]

    def blocks(self, pages: int) -> int:
        """Blocks for which that number of pages suffices."""
        return pages // len(self.layout.groups)

    # ---------------------------------------------------------------------------------------------- events

    def poll(self) -> None:
        for worker in self.workers:
            for event in worker.endpoint.poll(self.now):
                if not isinstance(event, Reopened):
                    self.on_event(worker, event)

    def on_event(self, worker: Worker, event: SenderEvent | ReceiverEvent) -> None:
        job = self.jobs[event.handoff_id - 1]
        uses = {worker.used[page][1] for page in job.lent} if job.target is worker else set()
        match event:
            case HandedOff() | SendFailed():
                assert not job.sent, "a handoff ended twice at its sender"
                job.sent = True
                if isinstance(event, SendFailed) and job.runs and not job.ended:
                    job.stopped = False  # it goes on where it is
                else:
                    job.ended = True
                    self.give_back_at_source(job)
            case CaughtUp():
                assert job.runs
            case Ready(_, final):
                assert uses == {Use.IN_FLIGHT}
                right = [job.token(i) for i in range(job.num_tokens, final.position + 1)]
                assert list(final.tokens) == right, "a wrong token would be streamed"
                job.handed = final.position
                worker.use(job.lent, job, Use.HELD)
            case ReceiveFailed():
                assert uses == {Use.IN_FLIGHT}
                worker.use(job.lent, job, Use.QUARANTINED)
            case Drained(_, verified):
                assert uses == {Use.QUARANTINED}
                self.check_pages(job, verified)
                worker.give_back(job.lent)

    def check_pages(self, job: Job, verified: int) -> None:
        """The first pages of a handoff that failed have the KV of all tokens before the next one."""
        assert job.target is not None
        size, groups = self.layout.page_size, len(self.layout.groups)
        blocks = range(job.order.first_block, self.layout.num_blocks(job.num_tokens))
        for page, place in list(zip(job.remote, job.order.places(blocks), strict=False))[:verified]:
            block, group = divmod(place, groups)
            for offset in range(size):
                arrived = page_view(job.target.pool, page)[:, offset]
                np.testing.assert_array_equal(arrived, token_kv(job, block * size + offset, group))
            self.num_verified += 1

    # -------------------------------------------------------------------------- the engines and the router

    def start(self, job: Job) -> None:
        job.opened = True
        known = None if job.runs else job.id
        sender = job.source.endpoint.sender
        sender.open(job.id, self.now, TIMEOUT_S, keeps_decoding=job.runs, request_digest=known)
        if job.runs:
            job.source.endpoint.sender.computed(job.id, job.local, job.computed, self.now)
        self.poll()

    def decode(self, job: Job) -> None:
        if job.computed == self.blocks(len(job.local)) * self.layout.page_size:
            pages = job.source.take(len(self.layout.groups), job, Use.RUNNING)
            if not pages:
                return  # it waits for them
            job.local += pages
        run_model(job, job.computed + 1)
        if not job.opened or job.sent:
            pass_by(job)  # a sender may read what it leaves behind
        elif not job.finished:
            job.source.endpoint.sender.computed(job.id, job.local, job.computed, self.now)
        self.poll()

    def stop(self, job: Job) -> None:
        """It stands still until the handoff is over, or is given up."""
        job.stopped = job.finished = True
        tokens = tuple(job.token(i) for i in range(job.num_tokens, job.computed + 1))
        final = HandoffState(tokens, job.computed, 0, job.id)
        job.source.endpoint.sender.finish(job.id, job.local, job.computed, final, self.now, state=job.state)
        self.poll()

    def end(self, job: Job) -> None:
        job.ended = True
        if job.opened and not job.sent:
            job.source.endpoint.sender.abort(job.id, self.now)
        else:
            self.give_back_at_source(job)
        self.poll()

    def resume(self, job: Job) -> None:
        """A step would change the state, so a job that has one waits until its sender no longer reads it."""
        job.stopped = job.stopped and bool(job.state)
        job.source.endpoint.sender.abort(job.id, self.now)
        self.poll()

    def give_back_at_source(self, job: Job) -> None:
        """The next owner overwrites the pages at once."""
        pages = [page for page in job.local if page != NO_PAGE] + job.state
        job.source.pool.bytes[pages] = 0xEE
        job.source.give_back(pages)

    def reserve(self, job: Job) -> None:
        worker = self.workers[1 - job.place]
        end = self.layout.num_blocks(job.num_tokens + job.room)
        needed = len(job.order.places(range(job.order.first_block, end)))
        if not worker.has_room(needed):
            return
        pages = worker.take(needed, job, Use.IN_FLIGHT)
        state = worker.take_state(job, Use.IN_FLIGHT)
        try:
            ticket = worker.endpoint.receiver.reserve(
                job.id,
                job.source.known,
                pages,
                job.first_token,
                job.num_tokens,
                self.now,
                TIMEOUT_S,
                request_digest=job.id,
                state=state,
            )
        except PeerUnreachable:
            worker.give_back(pages + state)
            return
        job.target, job.remote, job.remote_state = worker, pages, state
        self.tickets.append(ticket)

    def attach(self, ticket: Ticket) -> None:
        place = self.jobs[ticket.handoff_id - 1].place
        self.workers[place].endpoint.sender.attach(ticket, self.now)
        self.poll()

    def compute(self, job: Job, upto: int) -> None:
        run_model(job, upto)
        job.source.endpoint.sender.computed(job.id, job.local, upto, self.now)
        pass_by(job)
        self.poll()

    def finish(self, job: Job, final: HandoffState) -> None:
        run_model(job, job.num_tokens)
        job.finished = True
        pass_by(job)
        job.source.endpoint.sender.finish(job.id, job.local, job.num_tokens, final, self.now, state=job.state)
        self.poll()

    # -------------------------------------------------------------------------- the network and its faults

    def deliver_all(self) -> None:
        while self.network.writes or self.network.messages:
            for write in list(self.network.writes):
                self.network.complete(write)
            for message in list(self.network.messages):
                self.network.deliver(message)
            self.poll()

    def forge(self, ticket: Ticket, kind: str, secret: int) -> None:
        """A message with right ids, epochs, pages and digests, but with a wrong token and this secret."""
        job = self.jobs[ticket.handoff_id - 1]
        assert job.target is not None
        p, d = job.source.endpoint.peer, ticket.receiver
        tail_tokens = (job.num_tokens - 1) % self.layout.page_size + 1
        digester = HostDigester(job.target.pool.memory, self.layout)
        digests = digest_blocks(digester, self.layout, ticket.pages, tail_tokens)
        digests += digester.digest_state(ticket.state[0]) if ticket.state else []
        final = HandoffState((job.answer + 1,), job.num_tokens, 0, job.id)
        forged: dict[str, tuple[Peer, Peer, Body]] = {
            "push": (p, d, Push(0, len(ticket.pages), 2)),
            "digests": (p, d, Digests(0, tuple(digests), job.id)),
            "finish": (p, d, Finish(final, 0.0, tuple(digests))),
            "drain": (p, d, Drain("")),
            "confirm": (d, p, Confirm()),
            "revoke": (d, p, Revoke(d, "")),
        }
        source, target, body = forged[kind]
        message = HandoffMessage(ticket.handoff_id, source.epoch, target.epoch, secret, body)
        self.network.messages.append(InFlightMessage(target.name, encode(message)))

    def restart(self, place: int) -> None:
        self.workers[place] = worker = Worker(self.network, self.next_epoch(), self.layout)
        for epoch in self.fenced:
            worker.endpoint.fence(epoch, FENCED, self.now)

    def declare_dead(self, place: int, *, lives: bool) -> None:
        epoch = self.workers[place].epoch
        self.fenced.append(epoch)
        self.workers[1 - place].endpoint.fence(epoch, FENCED, self.now)
        if not lives:
            self.restart(place)
        self.poll()

    def heal(self) -> None:
        """Fenced workers restart, crashes are noticed, and everything in flight arrives, for 100 s."""
        for place, worker in enumerate(self.workers):
            if worker.epoch in self.fenced:
                self.unnoticed.append(worker.transport.name)
                self.restart(place)
        for _ in range(200):
            while self.unnoticed:
                self.network.notice(self.unnoticed.pop(0))
            while self.network.writes:
                self.network.complete(self.network.writes[0])
            while self.network.messages:
                self.network.deliver(self.network.messages[0])
            self.now += 0.5
            self.poll()
