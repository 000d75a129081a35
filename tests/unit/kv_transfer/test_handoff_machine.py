"""Hypothesis plays sender, receiver, both engines, the router, and a network that does its worst.

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
    Drained,
    Final,
    HandedOver,
    Peer,
    Ready,
    ReceiveFailed,
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
    Decode,
    Job,
    Prefill,
    Use,
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
FENCED = "the test says so"
SELDOM = st.sampled_from([False] * 9 + [True])


class HandoffMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.network = Network()
        self.now = 0.0
        self.epochs = 0
        self.jobs: list[Job] = []
        self.tickets: list[Ticket] = []
        self.unnoticed: list[str] = []
        self.fenced: list[int] = []
        """Epochs; a worker that comes is told of them first of all."""
        self.prefill = Prefill(self.network, self.next_epoch())
        self.decode = Decode(self.network, self.next_epoch())

    def next_epoch(self) -> int:
        self.epochs += 1
        return self.epochs

    # ------------------------------------------------------------------ the engines and the router

    @precondition(lambda self: self.prefill.free)
    @rule(pages=st.integers(1, 3), tail=st.integers(0, 1), cached=st.integers(0, 2), steps=_STEPS)
    def a_request_comes(self, pages: int, tail: int, cached: int, steps: str) -> None:
        """And is brought part of the way, so that most runs get to the interesting places."""
        local = sorted(self.prefill.free)[:pages]
        self.prefill.free -= set(local)
        num_tokens = len(local) * LAYOUT.page_size - tail
        first_token = min(cached, len(local) - 1) * LAYOUT.page_size
        job = Job(len(self.jobs) + 1, num_tokens, first_token, self.prefill, local)
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
                    self.compute(job, job.num_tokens // 2)
                case "finish" if not job.sent:
                    self.finish(job, Final(job.answer, job.num_tokens, 0, job.id))

    @precondition(lambda self: any(not job.opened for job in self.current()))
    @rule(index=INDEX)
    def a_prompt_starts(self, index: int) -> None:
        self.start(choose(index, [job for job in self.current() if not job.opened]))

    @precondition(lambda self: any(job.decode is None for job in self.jobs))
    @rule(index=INDEX)
    def the_decode_worker_reserves(self, index: int) -> None:
        self.reserve(choose(index, [job for job in self.jobs if job.decode is None]))

    @precondition(lambda self: self.tickets)
    @rule(index=INDEX)
    def a_ticket_is_delivered_perhaps_again(self, index: int) -> None:
        self.attach(choose(index, self.tickets[-4:]))

    @precondition(lambda self: self.computing())
    @rule(index=INDEX, tokens=st.integers(1, 4))
    def a_chunk_is_computed(self, index: int, tokens: int) -> None:
        job = choose(index, self.computing())
        self.compute(job, min(job.num_tokens, job.computed + tokens))

    @precondition(lambda self: self.computing())
    @rule(index=INDEX, of_another_request=SELDOM)
    def a_prompt_ends(self, index: int, of_another_request: bool) -> None:
        job = choose(index, self.computing())
        answer, digest = job.answer + of_another_request, job.id + of_another_request
        self.finish(job, Final(answer, job.num_tokens, 0, digest))

    @precondition(lambda self: self.jobs)
    @rule(index=INDEX, at_sender=st.booleans())
    def a_worker_aborts(self, index: int, at_sender: bool) -> None:
        job = choose(index, self.jobs[-4:])
        if at_sender:
            self.prefill.sender.abort(job.id, self.now)
        else:
            self.decode.receiver.abort(job.id, self.now)
        self.poll()

    @precondition(lambda self: self.held())
    @rule(index=INDEX)
    def a_decoding_request_ends(self, index: int) -> None:
        self.give_back(choose(index, self.held()))

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
        p, d = job.prefill.sender.peer, ticket.receiver
        tail_tokens = (job.num_tokens - 1) % LAYOUT.page_size + 1
        digests = HostDigester(self.decode.pool.memory, LAYOUT).digest(ticket.pages, tail_tokens)
        final = Final(job.answer + 1, job.num_tokens, 0, job.id)
        forged: dict[str, tuple[Peer, Peer, Body]] = {
            "push": (p, d, Push(0, len(ticket.pages))),
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

    @rule(really=SELDOM, prefill=st.booleans())
    def a_worker_restarts(self, really: bool, prefill: bool) -> None:
        if really and prefill:
            self.unnoticed.append(self.prefill.transport.name)
            self.restart_prefill()
        elif really:
            self.unnoticed.append(self.decode.transport.name)
            self.restart_decode()

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

    @rule(really=SELDOM, lives=st.booleans())
    def the_prefill_worker_is_declared_dead(self, really: bool, lives: bool) -> None:
        """And may live all the same: whoever declared it may only have lost sight of it."""
        if really:
            self.fence(self.prefill.sender.peer.epoch)
            if not lives:
                self.restart_prefill()
            self.poll()

    @rule(really=SELDOM)
    def the_decode_worker_is_declared_dead(self, really: bool) -> None:
        """And is; but no kernel is left to say so."""
        if really:
            epoch = self.decode.receiver.peer.epoch
            self.restart_decode()
            self.fence(epoch)
            self.poll()

    # ------------------------------------------------------------------------------------ what holds

    @invariant()
    def no_page_is_lost_or_owned_twice(self) -> None:
        assert len(self.decode.free) + len(self.decode.used) == NUM_PAGES
        assert not self.decode.free & self.decode.used.keys()

    @invariant()
    def no_write_is_in_flight_to_a_page_of_somebody_else(self) -> None:
        for write in self.network.writes:
            if write.target != self.decode.transport.name:
                continue
            for copy in write.copies:
                owner = self.decode.used.get(copy.remote // LAYOUT.page_bytes)
                assert owner is not None, "a free page is being written"
                assert owner[1] is not Use.HELD, "a page that is decoded from is being written"
                assert owner[0].prefill.transport is write.source

    @invariant()
    def what_is_decoded_from_is_what_was_computed(self) -> None:
        for page, (job, use) in self.decode.used.items():
            if use is not Use.HELD:
                continue
            begin = job.first_token + job.remote.index(page) * LAYOUT.page_size
            for token in range(begin, min(begin + LAYOUT.page_size, job.num_tokens)):
                arrived = page_view(self.decode.pool, page)[:, token - begin]
                np.testing.assert_array_equal(arrived, token_kv(job, token))

    def teardown(self) -> None:
        """The network heals. Whatever is still going on must come to an end, with every page returned."""
        for _ in range(200):
            while self.unnoticed:
                self.network.notice(self.unnoticed.pop(0))
            while self.network.writes:
                self.network.complete(self.network.writes[0])
            while self.network.messages:
                self.network.deliver(self.network.messages[0])
            self.now += 0.5
            self.poll()
        assert self.prefill.sender.num_live == 0
        assert self.decode.receiver.num_live == 0
        for job, use in set(self.decode.used.values()):
            assert use is Use.HELD, "pages stay in quarantine though everybody is well"
            self.give_back(job)
        assert len(self.decode.free) == NUM_PAGES
        for job in self.jobs:
            assert job.sent or not job.opened or job.prefill is not self.prefill

    # --------------------------------------------------------------------------------------- helpers

    def poll(self) -> None:
        for sent in self.prefill.sender.poll(self.now):
            assert isinstance(sent, HandedOver | SendFailed)
            job = self.jobs[sent.handoff_id - 1]
            assert not job.sent, "a handoff ended twice at its sender"
            job.sent = True
            # The next owner overwrites the pages at once.
            self.prefill.pool.bytes[job.local] = 0xEE
            self.prefill.free.update(job.local)
        for received in self.decode.receiver.poll(self.now):
            job = self.jobs[received.handoff_id - 1]
            uses = {self.decode.used[page][1] for page in job.remote}
            match received:
                case Ready(_, final):
                    assert uses == {Use.IN_FLIGHT}
                    assert final.first_token == job.answer, "a wrong token would be streamed"
                    self.decode.used.update(dict.fromkeys(job.remote, (job, Use.HELD)))
                case ReceiveFailed():
                    assert uses == {Use.IN_FLIGHT}
                    self.decode.used.update(dict.fromkeys(job.remote, (job, Use.QUARANTINED)))
                case Drained():
                    assert uses == {Use.QUARANTINED}
                    self.give_back(job)

    def restart_prefill(self) -> None:
        self.prefill = Prefill(self.network, self.next_epoch())
        for epoch in self.fenced:
            self.prefill.sender.fence(epoch, FENCED, self.now)

    def restart_decode(self) -> None:
        self.decode = Decode(self.network, self.next_epoch())
        for epoch in self.fenced:
            self.decode.receiver.fence(epoch, FENCED, self.now)

    def fence(self, epoch: int) -> None:
        self.fenced.append(epoch)
        self.prefill.sender.fence(epoch, FENCED, self.now)
        self.decode.receiver.fence(epoch, FENCED, self.now)

    def give_back(self, job: Job) -> None:
        for page in job.remote:
            del self.decode.used[page]
        self.decode.free.update(job.remote)

    def current(self) -> list[Job]:
        """Jobs of the prefill worker that lives."""
        return [job for job in self.jobs if job.prefill is self.prefill]

    def computing(self) -> list[Job]:
        return [job for job in self.current() if job.opened and not job.finished and not job.sent]

    def held(self) -> list[Job]:
        return [job for job, use in self.decode.used.values() if use is Use.HELD]

    def start(self, job: Job) -> None:
        job.opened = True
        self.prefill.sender.open(job.id, self.now, TIMEOUT_S)
        self.poll()

    def reserve(self, job: Job) -> None:
        needed = LAYOUT.num_pages(job.num_tokens) - job.first_token // LAYOUT.page_size
        pages = sorted(self.decode.free)[:needed]
        if len(pages) < needed:
            return
        sender = job.prefill.sender.peer
        try:
            ticket = self.decode.receiver.reserve(
                job.id,
                sender,
                pages,
                job.first_token,
                job.num_tokens,
                self.now,
                TIMEOUT_S,
                request_digest=job.id,
            )
        except PeerUnreachable:
            return
        job.decode, job.remote = self.decode, pages
        self.decode.free -= set(pages)
        self.decode.used.update(dict.fromkeys(pages, (job, Use.IN_FLIGHT)))
        self.tickets.append(ticket)

    def attach(self, ticket: Ticket) -> None:
        self.prefill.sender.attach(ticket, self.now)
        self.poll()

    def compute(self, job: Job, upto: int) -> None:
        run_model(job, upto)
        self.prefill.sender.computed(job.id, job.local, upto, self.now)
        self.poll()

    def finish(self, job: Job, final: Final) -> None:
        run_model(job, job.num_tokens)
        job.finished = True
        self.prefill.sender.finish(job.id, job.local, job.num_tokens, final, self.now)
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
