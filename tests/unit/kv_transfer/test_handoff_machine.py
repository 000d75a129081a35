"""Hypothesis plays two workers that hand over to each other, the router, and a network that does its worst.

After every step: no page is lost or owned twice, no write is in flight to a page that was given to
somebody else, and every page that a request decodes from holds exactly what was computed for it. In the
end, when the network heals, every handoff is over and every page is back.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kv_transfer import (
    CaughtUp,
    Drained,
    Final,
    HandedOver,
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
from kv_transfer.handoff.messages import Body, Confirm, Drain, Finish, Message, Push, Revoke, encode
from kv_transfer.integrity.digest import HostDigester
from tests.kv_network import InFlightMessage, Network
from tests.kv_workers import (
    LAYOUT,
    NUM_PAGES,
    Job,
    Use,
    Worker,
    choose,
    page_view,
    run_model,
    token_kv,
)

TIMEOUT_S = 10.0
INDEX = st.integers(min_value=0, max_value=10**6)
_STEPS = st.sampled_from(
    [
        "",
        "start",
        "reserve",
        "reserve attach",
        "start finish",
        "start reserve",
        "start reserve attach",
        "start reserve attach chunk",
        "start reserve attach chunk",
        "start reserve attach chunk finish",
        "start reserve attach finish",
        "start finish reserve attach",
    ]
)
_RUNNING_STEPS = st.sampled_from(
    [
        "",
        "decode decode start",
        "start reserve attach",
        "reserve decode start attach",
        "decode start reserve decode attach decode",
        "start reserve attach decode decode",
        "start reserve attach decode stop",
        "start reserve attach stop",
        "start reserve attach stop resume decode",
    ]
)
FENCED = "the test says so"
SELDOM = st.sampled_from([False] * 9 + [True])


class HandoffMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.unnoticed: list[str] = []
        self.network = Network(unnoticed=self.unnoticed)
        self.now = 0.0
        self.epochs = 0
        self.jobs: list[Job] = []
        self.tickets: list[Ticket] = []
        self.fenced: list[int] = []
        """Epochs; a worker that comes is told of them first of all."""
        self.workers = [Worker(self.network, self.next_epoch()) for _ in range(2)]

    def next_epoch(self) -> int:
        self.epochs += 1
        return self.epochs

    # ------------------------------------------------------------------ the engines and the router

    @rule(
        place=st.integers(0, 1),
        pages=st.integers(1, 3),
        tail=st.integers(0, 1),
        cached=st.integers(0, 2),
        split=st.integers(0, 5),
        steps=_STEPS,
    )
    def a_request_comes(self, place: int, pages: int, tail: int, cached: int, split: int, steps: str) -> None:
        """And is brought part of the way, so that most runs get to the interesting places."""
        worker = self.workers[place]
        pages = min(pages, len(worker.free))
        if not pages:
            return
        first_token = min(cached, pages - 1) * LAYOUT.page_size
        num_tokens = pages * LAYOUT.page_size - tail
        job = Job(len(self.jobs) + 1, num_tokens, first_token, place, worker, [])
        job.split = min(split, num_tokens - 1)
        job.local = worker.take(pages, job, Use.SENDING)
        self.jobs.append(job)
        for step in steps.split():
            match step:
                case "start":
                    self.start(job)
                case "reserve":
                    self.reserve(job)
                case "attach" if self.tickets:
                    self.attach(self.tickets[-1])
                case "chunk" if not job.sent:
                    self.compute(job, job.part // 2)
                case "finish" if not job.sent:
                    self.finish(job, job.final())

    @rule(
        place=st.integers(0, 1),
        num_tokens=st.integers(2, 6),
        cached=st.integers(0, 2),
        room=st.integers(0, 4),
        steps=_RUNNING_STEPS,
    )
    def an_answer_runs_that_may_move(
        self, place: int, num_tokens: int, cached: int, room: int, steps: str
    ) -> None:
        """All of its tokens but the last have KV."""
        worker = self.workers[place]
        pages = LAYOUT.num_pages(num_tokens)
        if pages > len(worker.free):
            return
        first_token = min(cached, pages - 1) * LAYOUT.page_size
        job = Job(len(self.jobs) + 1, num_tokens, first_token, place, worker, [], runs=True, room=room)
        job.local = worker.take(pages, job, Use.RUNNING)
        self.jobs.append(job)
        run_model(job, num_tokens - 1)
        for step in steps.split():
            match step:
                case "start" if not job.opened:
                    self.start(job)
                case "reserve" if job.target is None:
                    self.reserve(job)
                case "attach" if self.tickets:
                    self.attach(self.tickets[-1])
                case "decode" if job.decodes:
                    self.decode(job)
                case "stop" if job in self.movable():
                    self.stop(job)
                case "resume" if job.stopped and not job.ended:
                    self.resume(job)

    @precondition(lambda self: any(job.decodes for job in self.current()))
    @rule(index=INDEX)
    def a_running_answer_gets_a_token(self, index: int) -> None:
        self.decode(choose(index, [job for job in self.current() if job.decodes]))

    @precondition(lambda self: self.movable())
    @rule(index=INDEX)
    def a_running_answer_is_stopped_to_move(self, index: int) -> None:
        self.stop(choose(index, self.movable()))

    @precondition(lambda self: any(job.stopped and not job.ended for job in self.current()))
    @rule(index=INDEX)
    def a_stopped_answer_goes_on_where_it_is(self, index: int) -> None:
        """It stood still for too long. Perhaps the other worker has it already, and goes on too."""
        self.resume(choose(index, [job for job in self.current() if job.stopped and not job.ended]))

    @precondition(lambda self: any(job.runs and not job.ended for job in self.current()))
    @rule(index=INDEX)
    def a_running_answer_ends(self, index: int) -> None:
        job = choose(index, [job for job in self.current() if job.runs and not job.ended])
        job.ended = True
        if job.opened and not job.sent:
            job.source.endpoint.sender.abort(job.id, self.now)
        else:
            self.give_back_at_source(job)
        self.poll()

    @precondition(lambda self: any(not job.opened and not job.ended for job in self.current()))
    @rule(index=INDEX)
    def a_prompt_starts(self, index: int) -> None:
        self.start(choose(index, [job for job in self.current() if not job.opened and not job.ended]))

    @precondition(lambda self: any(job.target is None for job in self.jobs))
    @rule(index=INDEX)
    def the_other_worker_reserves(self, index: int) -> None:
        self.reserve(choose(index, [job for job in self.jobs if job.target is None]))

    @precondition(lambda self: self.tickets)
    @rule(index=INDEX)
    def a_ticket_is_delivered_perhaps_again(self, index: int) -> None:
        self.attach(choose(index, self.tickets[-4:]))

    @precondition(lambda self: self.computing())
    @rule(index=INDEX, tokens=st.integers(1, 4))
    def a_chunk_is_computed(self, index: int, tokens: int) -> None:
        job = choose(index, self.computing())
        self.compute(job, min(job.part, job.computed + tokens))

    @precondition(lambda self: self.computing())
    @rule(index=INDEX, of_another_request=SELDOM)
    def a_prompt_ends(self, index: int, of_another_request: bool) -> None:
        job = choose(index, self.computing())
        self.finish(job, job.final(wrong=of_another_request))

    @precondition(lambda self: self.jobs)
    @rule(index=INDEX, at_sender=st.booleans())
    def a_worker_aborts(self, index: int, at_sender: bool) -> None:
        job = choose(index, self.jobs[-4:])
        if at_sender:
            self.workers[job.place].endpoint.sender.abort(job.id, self.now)
            job.stopped = False  # it goes on at once: nothing that it writes now will be decoded from
        else:
            self.workers[1 - job.place].endpoint.receiver.abort(job.id, self.now)
        self.poll()

    @precondition(lambda self: self.held())
    @rule(index=INDEX)
    def a_decoding_request_ends(self, index: int) -> None:
        job = choose(index, self.held())
        self.workers[1 - job.place].give_back(job.remote)

    @rule()
    def the_router_hears_of_new_transports(self) -> None:
        for worker in self.workers:
            worker.known = worker.endpoint.peer

    # ----------------------------------------------------------------------------------- the network

    @rule()
    def the_network_has_a_good_moment(self) -> None:
        while self.network.writes or self.network.messages:
            for write in list(self.network.writes):
                self.network.complete(write)
            for message in list(self.network.messages):
                self.network.deliver(message)
            self.poll()

    @precondition(lambda self: self.network.messages)
    @rule(index=INDEX, fate=st.sampled_from(["arrive"] * 4 + ["vanish", "double", "damage"]), bit=INDEX)
    def a_message_meets_its_fate(self, index: int, fate: str, bit: int) -> None:
        message = choose(index, self.network.messages)
        match fate:
            case "arrive":
                self.network.deliver(message)
            case "vanish":
                self.network.messages.remove(message)
            case "double":
                self.network.messages.append(InFlightMessage(message.target, message.data))
            case "damage":
                data = bytearray(message.data)
                data[bit // 8 % len(data)] ^= 1 << bit % 8
                message.data = bytes(data)
        self.poll()

    @precondition(lambda self: self.network.writes)
    @rule(index=INDEX, fate=st.sampled_from(["land"] * 3 + ["complete"] * 3 + ["fail", "flip a bit"]))
    def a_write_meets_its_fate(self, index: int, fate: str) -> None:
        write = choose(index, self.network.writes)
        match fate:
            case "complete":
                self.network.complete(write)
            case "fail":
                self.network.fail(write)
            case "land" | "flip a bit" if write.target in self.network.closed:
                self.network.fail(write)
            case "land" | "flip a bit" if write.copies:
                self.network.land(write, flip_bit=fate == "flip a bit")
        self.poll()

    @precondition(lambda self: self.tickets)
    @rule(
        index=INDEX,
        kind=st.sampled_from(["push", "finish", "drain", "confirm", "revoke"]),
        with_another_s_secret=st.booleans(),
    )
    def a_stranger_speaks_for_a_worker(self, index: int, kind: str, with_another_s_secret: bool) -> None:
        """It knows what is on the network, and the pages; but of this ticket it was not told."""
        ticket = choose(index, self.tickets[-4:])
        job = self.jobs[ticket.handoff_id - 1]
        others = [other.secret for other in self.tickets if other is not ticket]
        secret = others[-1] if with_another_s_secret and others else 0
        assert job.target is not None
        p, d = job.source.endpoint.peer, ticket.receiver
        tail_tokens = (job.num_tokens - 1) % LAYOUT.page_size + 1
        digests = HostDigester(job.target.pool.memory, LAYOUT).digest(ticket.pages, tail_tokens)
        final = Final((job.answer + 1,), job.num_tokens, 0, job.id)
        forged: dict[str, tuple[Peer, Peer, Body]] = {
            "push": (p, d, Push(0, len(ticket.pages), 2)),
            "finish": (p, d, Finish(final, 0.0, tuple(digests))),
            "drain": (p, d, Drain("")),
            "confirm": (d, p, Confirm()),
            "revoke": (d, p, Revoke(d, "")),
        }
        source, target, body = forged[kind]
        message = Message(ticket.handoff_id, source.epoch, target.epoch, secret, body)
        self.network.messages.append(InFlightMessage(target.name, encode(message)))

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.3, 0.3, 1.0, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.poll()

    @rule(really=SELDOM, place=st.integers(0, 1))
    def a_worker_restarts(self, really: bool, place: int) -> None:
        if really:
            self.unnoticed.append(self.workers[place].transport.name)
            self.restart(place)

    @rule(really=SELDOM)
    def every_link_breaks(self, really: bool) -> None:
        if really:
            self.network.disconnect()
            self.poll()

    @precondition(lambda self: self.unnoticed)
    @rule()
    def a_crash_is_noticed(self) -> None:
        self.network.notice(self.unnoticed.pop(0))
        self.poll()

    @rule(really=SELDOM, place=st.integers(0, 1), lives=st.booleans())
    def a_worker_is_declared_dead(self, really: bool, place: int, lives: bool) -> None:
        """And may live all the same: whoever declared it may only have lost sight of it. If it is dead, no
        kernel is left to say so."""
        if really and self.workers[place].epoch not in self.fenced:
            epoch = self.workers[place].epoch
            self.fenced.append(epoch)
            self.workers[1 - place].endpoint.fence(epoch, FENCED, self.now)
            if not lives:
                self.restart(place)
            self.poll()

    # ------------------------------------------------------------------------------------ what holds

    @invariant()
    def no_page_is_lost_or_owned_twice(self) -> None:
        for worker in self.workers:
            assert len(worker.free) + len(worker.used) == NUM_PAGES
            assert not worker.free & worker.used.keys()

    @invariant()
    def no_write_is_in_flight_to_a_page_of_somebody_else(self) -> None:
        targets = {worker.transport.name: worker for worker in self.workers}
        for write in self.network.writes:
            if write.target not in targets:
                continue
            for copy in write.copies:
                owner = targets[write.target].used.get(copy.remote // LAYOUT.page_bytes)
                assert owner is not None, "a free page is being written"
                assert owner[1] in (Use.IN_FLIGHT, Use.QUARANTINED), "a page in use here is being written"
                assert owner[0].source.transport is write.source

    @invariant()
    def what_is_decoded_from_is_what_was_computed(self) -> None:
        for worker in self.workers:
            for page, (job, use) in worker.used.items():
                if use is not Use.HELD:
                    continue
                begin = job.first_token + job.remote.index(page) * LAYOUT.page_size
                for token in range(begin, min(begin + LAYOUT.page_size, job.handed)):
                    arrived = page_view(worker.pool, page)[:, token - begin]
                    np.testing.assert_array_equal(arrived, token_kv(job, token))

    def teardown(self) -> None:
        """The network heals. Whatever is still going on must come to an end, with every page returned."""
        for place, worker in enumerate(self.workers):
            if worker.epoch in self.fenced:  # it comes back, and is ended at once
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
        for worker in self.workers:
            assert worker.endpoint.sender.num_live == worker.endpoint.receiver.num_live == 0
            for job, use in worker.used.values():
                never_begun = use is Use.SENDING and not job.opened
                assert use in (Use.HELD, Use.RUNNING) or never_begun, f"pages are still {use.name}"
        for job in self.jobs:
            assert job.sent or not job.opened or job.source is not self.workers[job.place]

    # --------------------------------------------------------------------------------------- helpers

    def poll(self) -> None:
        for worker in self.workers:
            for event in worker.endpoint.poll(self.now):
                if not isinstance(event, Reopened):
                    self.on_event(worker, event)

    def on_event(self, worker: Worker, event: SenderEvent | ReceiverEvent) -> None:
        job = self.jobs[event.handoff_id - 1]
        uses = {worker.used[page][1] for page in job.remote} if job.target is worker else set()
        match event:
            case HandedOver() | SendFailed():
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
                worker.use(job.remote, job, Use.HELD)
            case ReceiveFailed():
                assert uses == {Use.IN_FLIGHT}
                worker.use(job.remote, job, Use.QUARANTINED)
            case Drained():
                assert uses == {Use.QUARANTINED}
                worker.give_back(job.remote)

    def restart(self, place: int) -> None:
        self.workers[place] = worker = Worker(self.network, self.next_epoch())
        for epoch in self.fenced:
            worker.endpoint.fence(epoch, FENCED, self.now)

    def current(self) -> list[Job]:
        """Jobs of workers that live."""
        return [job for job in self.jobs if job.source is self.workers[job.place]]

    def computing(self) -> list[Job]:
        return [
            job for job in self.current() if job.opened and not job.runs and not job.finished and not job.sent
        ]

    def movable(self) -> list[Job]:
        return [job for job in self.current() if job.decodes and job.opened and not job.finished]

    def held(self) -> list[Job]:
        return [job for worker in self.workers for job, use in worker.used.values() if use is Use.HELD]

    def start(self, job: Job) -> None:
        job.opened = True
        job.source.endpoint.sender.open(job.id, self.now, TIMEOUT_S, goes_on=job.runs)
        if job.runs:
            job.source.endpoint.sender.computed(job.id, job.local, job.computed, self.now)
        self.poll()

    def decode(self, job: Job) -> None:
        if job.computed == len(job.local) * LAYOUT.page_size:
            job.local += job.source.take(1, job, Use.RUNNING)
        if job.computed == len(job.local) * LAYOUT.page_size:
            return  # it waits for a page
        run_model(job, job.computed + 1)
        if job.opened and not job.finished:
            job.source.endpoint.sender.computed(job.id, job.local, job.computed, self.now)
        self.poll()

    def stop(self, job: Job) -> None:
        """It stands still until the handoff is over, or is given up."""
        job.stopped = job.finished = True
        tokens = tuple(job.token(i) for i in range(job.num_tokens, job.computed + 1))
        final = Final(tokens, job.computed, 0, job.id)
        job.source.endpoint.sender.finish(job.id, job.local, job.computed, final, self.now)
        self.poll()

    def resume(self, job: Job) -> None:
        job.stopped = False
        job.source.endpoint.sender.abort(job.id, self.now)
        self.poll()

    def give_back_at_source(self, job: Job) -> None:
        """The next owner overwrites the pages at once."""
        job.source.pool.bytes[job.local] = 0xEE
        job.source.give_back(job.local)

    def reserve(self, job: Job) -> None:
        worker = self.workers[1 - job.place]
        needed = LAYOUT.num_pages(job.num_tokens + job.room) - job.first_token // LAYOUT.page_size
        pages = worker.take(needed, job, Use.IN_FLIGHT)
        if not pages:
            return
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
            )
        except PeerUnreachable:
            worker.give_back(pages)
            return
        job.target, job.remote = worker, pages
        self.tickets.append(ticket)

    def attach(self, ticket: Ticket) -> None:
        place = self.jobs[ticket.handoff_id - 1].place
        self.workers[place].endpoint.sender.attach(ticket, self.now)
        self.poll()

    def compute(self, job: Job, upto: int) -> None:
        run_model(job, upto)
        job.source.endpoint.sender.computed(job.id, job.local, upto, self.now)
        self.poll()

    def finish(self, job: Job, final: Final) -> None:
        run_model(job, job.part)
        job.finished = True
        job.source.endpoint.sender.finish(job.id, job.local, job.part, final, self.now)
        self.poll()


_CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
_LOOSE = settings(deadline=None, suppress_health_check=_CHECKS)


def test_no_network_can_make_a_handoff_wrong() -> None:
    run_state_machine_as_test(
        HandoffMachine, settings=settings(_LOOSE, max_examples=300, stateful_step_count=60)
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_network_can_make_a_handoff_wrong_in_100_000_steps() -> None:
    steps = 0

    class CountedMachine(HandoffMachine):
        @invariant()
        def another_step(self) -> None:
            nonlocal steps
            steps += 1

    new_every_time = settings(_LOOSE, max_examples=500, stateful_step_count=100, derandomize=False)
    while steps < 100_000:
        run_state_machine_as_test(CountedMachine, settings=new_every_time)
    print(f"\n{steps} steps", end="")
