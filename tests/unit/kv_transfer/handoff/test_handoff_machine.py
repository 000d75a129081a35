"""Hypothesis plays two workers that hand off to each other, the router, and a network that does its worst.

Models have one group of layers or several, with windows, and recurrent states.

After every step: no page is lost or owned twice, no write is in flight to a page of another
owner, and every page that a request decodes from holds exactly what was computed for it. In the
end, when the network heals, every handoff is over and every page is back.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kv_transfer import KVLayout
from tests.kv_network import InFlightMessage
from tests.kv_workers import LAYOUTS, Job, Use, choose, page_view, pass_by, run_model, state_kv, token_kv
from tests.unit.kv_transfer.handoff.handoff_world import HandoffWorld

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
        "start finish reserve attach flip arrive",
        "start reserve attach chunk finish flip arrive",
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
        "start reserve attach arrive decode stop flip arrive",
    ]
)
PIECES = st.sampled_from([0, -1, 1, 2])
SELDOM = st.sampled_from([False] * 9 + [True])


class HandoffMachine(RuleBasedStateMachine):
    @initialize(layout=st.sampled_from(LAYOUTS))
    def start(self, layout: KVLayout) -> None:
        self.world = HandoffWorld(layout)
        self.layout = layout
        self.groups = len(layout.groups)

    # ------------------------------------------------------------------ the engines and the router

    @rule(
        place=st.integers(0, 1),
        blocks=st.integers(1, 4),
        tail=st.integers(0, 1),
        cached=st.integers(0, 2),
        steps=_STEPS,
        piece=PIECES,
    )
    def a_request_comes(
        self, place: int, blocks: int, tail: int, cached: int, steps: str, piece: int
    ) -> None:
        """And is brought part of the way, so that most runs get to the interesting places."""
        worker = self.world.workers[place]
        blocks = min(blocks, self.world.blocks(len(worker.free)))
        if not blocks or not worker.has_room(blocks):
            return
        first_token = min(cached, blocks - 1) * self.layout.page_size
        num_tokens = blocks * self.layout.page_size - tail
        job = Job(len(self.world.jobs) + 1, num_tokens, first_token, place, worker, [], [])
        job.local = worker.take(blocks * self.groups, job, Use.SENDING)
        job.state = worker.take_state(job, Use.SENDING)
        self.world.jobs.append(job)
        self._bring_along(job, steps, piece)

    def _bring_along(self, job: Job, steps: str, piece: int) -> None:
        """Run what is possible of `steps`."""
        for step in steps.split():
            match step:
                case "start" if not job.opened:
                    self.world.start(job)
                case "reserve" if job.target is None:
                    self.world.reserve(job)
                case "attach" if self.world.tickets:
                    self.world.attach(self.world.tickets[-1])
                case "chunk" if not job.sent:
                    self.world.compute(job, job.num_tokens // 2)
                case "finish" if not job.sent:
                    self.world.finish(job, job.final())
                case "decode" if job.decodes:
                    self.world.decode(job)
                case "stop" if job in self.world.movable():
                    self.world.stop(job)
                case "resume" if job.stopped and not job.ended:
                    self.world.resume(job)
                case "flip":
                    self._flip_a_bit(piece)
                case "arrive":
                    self.world.deliver_all()

    def _flip_a_bit(self, piece: int) -> None:
        """Flip a bit of what the newest write brings."""
        writes = self.world.network.writes
        if writes and writes[-1].copies and writes[-1].target not in self.world.network.closed:
            self.world.network.land(writes[-1], piece, flip_bit=True)

    @rule(
        place=st.integers(0, 1),
        num_tokens=st.integers(2, 6),
        cached=st.integers(0, 2),
        room=st.integers(0, 4),
        steps=_RUNNING_STEPS,
        piece=PIECES,
    )
    def an_answer_runs_that_may_move(
        self, place: int, num_tokens: int, cached: int, room: int, steps: str, piece: int
    ) -> None:
        """All of its tokens but the last have KV."""
        worker = self.world.workers[place]
        blocks = self.layout.num_blocks(num_tokens)
        if not worker.has_room(blocks * self.groups):
            return
        first_token = min(cached, blocks - 1) * self.layout.page_size
        job = Job(
            len(self.world.jobs) + 1, num_tokens, first_token, place, worker, [], [], runs=True, room=room
        )
        job.local = worker.take(blocks * self.groups, job, Use.RUNNING)
        job.state = worker.take_state(job, Use.RUNNING)
        self.world.jobs.append(job)
        run_model(job, num_tokens - 1)
        pass_by(job)
        self._bring_along(job, steps, piece)

    @precondition(lambda self: self.world.decoding())
    @rule(index=INDEX)
    def a_running_answer_gets_a_token(self, index: int) -> None:
        self.world.decode(choose(index, self.world.decoding()))

    @precondition(lambda self: self.world.movable())
    @rule(index=INDEX)
    def a_running_answer_is_stopped_to_move(self, index: int) -> None:
        self.world.stop(choose(index, self.world.movable()))

    @precondition(lambda self: self.world.stopped())
    @rule(index=INDEX)
    def a_stopped_answer_goes_on_where_it_is(self, index: int) -> None:
        """It stood still for too long. Perhaps the other worker has it already, and goes on too."""
        self.world.resume(choose(index, self.world.stopped()))

    @precondition(lambda self: self.world.running())
    @rule(index=INDEX)
    def a_running_answer_ends(self, index: int) -> None:
        self.world.end(choose(index, self.world.running()))

    @precondition(lambda self: self.world.unopened())
    @rule(index=INDEX)
    def a_prompt_starts(self, index: int) -> None:
        self.world.start(choose(index, self.world.unopened()))

    @precondition(lambda self: self.world.unreserved())
    @rule(index=INDEX)
    def the_other_worker_reserves(self, index: int) -> None:
        self.world.reserve(choose(index, self.world.unreserved()))

    @precondition(lambda self: self.world.tickets)
    @rule(index=INDEX)
    def a_ticket_is_delivered_perhaps_again(self, index: int) -> None:
        self.world.attach(choose(index, self.world.tickets[-4:]))

    @precondition(lambda self: self.world.computing())
    @rule(index=INDEX, tokens=st.integers(1, 4))
    def a_chunk_is_computed(self, index: int, tokens: int) -> None:
        job = choose(index, self.world.computing())
        self.world.compute(job, min(job.num_tokens, job.computed + tokens))

    @precondition(lambda self: self.world.computing())
    @rule(index=INDEX, of_another_request=SELDOM)
    def a_prompt_ends(self, index: int, of_another_request: bool) -> None:
        job = choose(index, self.world.computing())
        self.world.finish(job, job.final(wrong=of_another_request))

    @precondition(lambda self: self.world.jobs)
    @rule(index=INDEX, at_sender=st.booleans())
    def a_worker_aborts(self, index: int, at_sender: bool) -> None:
        job = choose(index, self.world.jobs[-4:])
        if at_sender:
            self.world.workers[job.place].endpoint.sender.abort(job.id, self.world.now)
            # It goes on at once, if it has no state: nothing that it writes now will be decoded from.
            job.stopped = job.stopped and bool(job.state)
        else:
            self.world.workers[1 - job.place].endpoint.receiver.abort(job.id, self.world.now)
        self.world.poll()

    @precondition(lambda self: self.world.held())
    @rule(index=INDEX)
    def a_decoding_request_ends(self, index: int) -> None:
        job = choose(index, self.world.held())
        self.world.workers[1 - job.place].give_back(job.lent)

    @rule()
    def the_router_hears_of_new_transports(self) -> None:
        for worker in self.world.workers:
            worker.known = worker.endpoint.peer

    # ------------------------------------------------------------------------------ the network

    @rule()
    def the_network_has_a_good_moment(self) -> None:
        self.world.deliver_all()

    @precondition(lambda self: self.world.network.messages)
    @rule(index=INDEX, fate=st.sampled_from(["arrive"] * 4 + ["vanish", "double", "damage"]), bit=INDEX)
    def a_message_meets_its_fate(self, index: int, fate: str, bit: int) -> None:
        message = choose(index, self.world.network.messages)
        match fate:
            case "arrive":
                self.world.network.deliver(message)
            case "vanish":
                self.world.network.messages.remove(message)
            case "double":
                self.world.network.messages.append(InFlightMessage(message.target, message.data))
            case "damage":
                data = bytearray(message.data)
                data[bit // 8 % len(data)] ^= 1 << bit % 8
                message.data = bytes(data)
        self.world.poll()

    @precondition(lambda self: self.world.network.writes)
    @rule(
        index=INDEX,
        fate=st.sampled_from(["land"] * 3 + ["complete"] * 3 + ["fail", "flip a bit"]),
        piece=PIECES,
    )
    def a_write_meets_its_fate(self, index: int, fate: str, piece: int) -> None:
        write = choose(index, self.world.network.writes)
        match fate:
            case "complete":
                self.world.network.complete(write)
            case "fail":
                self.world.network.fail(write)
            case "land" | "flip a bit" if write.target in self.world.network.closed:
                self.world.network.fail(write)
            case "land" | "flip a bit" if write.copies:
                self.world.network.land(write, piece, flip_bit=fate == "flip a bit")
        self.world.poll()

    @precondition(lambda self: self.world.tickets)
    @rule(
        index=INDEX,
        kind=st.sampled_from(["push", "digests", "finish", "drain", "confirm", "revoke"]),
        with_another_s_secret=st.booleans(),
    )
    def a_stranger_speaks_for_a_worker(self, index: int, kind: str, with_another_s_secret: bool) -> None:
        """It knows what is on the network, and the pages; but of this ticket it was not told."""
        ticket = choose(index, self.world.tickets[-4:])
        others = [other.secret for other in self.world.tickets if other is not ticket]
        secret = others[-1] if with_another_s_secret and others else 0
        self.world.forge(ticket, kind, secret)

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.3, 0.3, 1.0, 3.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.poll()

    @rule(really=SELDOM, place=st.integers(0, 1))
    def a_worker_restarts(self, really: bool, place: int) -> None:
        if really:
            self.world.unnoticed.append(self.world.workers[place].transport.name)
            self.world.restart(place)

    @rule(really=SELDOM)
    def every_link_breaks(self, really: bool) -> None:
        if really:
            self.world.network.disconnect()
            self.world.poll()

    @precondition(lambda self: self.world.unnoticed)
    @rule()
    def a_crash_is_noticed(self) -> None:
        self.world.network.notice(self.world.unnoticed.pop(0))
        self.world.poll()

    @rule(really=SELDOM, place=st.integers(0, 1), lives=st.booleans())
    def a_worker_is_declared_dead(self, really: bool, place: int, lives: bool) -> None:
        """It may still run, since being unreachable looks the same as being dead. If it is dead, no kernel is
        left to close its connections."""
        if really and self.world.workers[place].epoch not in self.world.fenced:
            self.world.declare_dead(place, lives=lives)

    # ------------------------------------------------------------------------------------ what holds

    @invariant()
    def no_page_is_lost_or_owned_twice(self) -> None:
        for worker in self.world.workers:
            free = worker.free | worker.free_states
            assert len(free) + len(worker.used) == worker.pool.num_pages
            assert not free & worker.used.keys()

    @invariant()
    def no_write_is_in_flight_to_a_page_of_somebody_else(self) -> None:
        targets = {worker.transport.name: worker for worker in self.world.workers}
        for write in self.world.network.writes:
            if write.target not in targets:
                continue
            for copy in write.copies:
                owner = targets[write.target].used.get(copy.remote // self.layout.page_bytes)
                assert owner is not None, "a free page is being written"
                assert owner[1] in (Use.IN_FLIGHT, Use.QUARANTINED), "a page in use here is being written"
                assert owner[0].source.transport is write.source

    @invariant()
    def what_is_decoded_from_is_what_was_computed(self) -> None:
        for worker in self.world.workers:
            for job in {job for job, use in worker.used.values() if use is Use.HELD}:
                arrived = worker.pool.bytes[job.remote_state].reshape(-1)[: worker.layout.state_bytes]
                computed = state_kv(job, job.handed).reshape(-1)[: worker.layout.state_bytes]
                np.testing.assert_array_equal(arrived, computed)
                self._expect_pages(job)

    def _expect_pages(self, job: Job) -> None:
        """Expect the pages of the tokens that a token from the last handed one on sees."""
        assert job.target is not None
        size = self.layout.page_size
        blocks = range(job.order.first_block, self.layout.num_blocks(job.handed))
        for page, place in zip(job.remote, job.order.places(blocks), strict=False):
            block, group = divmod(place, self.groups)
            seen = self.layout.groups[group].first_needed(job.handed - 1)
            for token in range(max(seen, block * size), min((block + 1) * size, job.handed)):
                arrived = page_view(job.target.pool, page)[:, token - block * size]
                np.testing.assert_array_equal(arrived, token_kv(job, token, group))

    def teardown(self) -> None:
        """The network heals. Whatever is still going on must come to an end, with every page returned."""
        self.world.heal()
        for worker in self.world.workers:
            assert worker.endpoint.sender.num_live == worker.endpoint.receiver.num_live == 0
            for job, use in worker.used.values():
                never_begun = use is Use.SENDING and not job.opened
                assert use in (Use.HELD, Use.RUNNING) or never_begun, f"pages are still {use.name}"
        for job in self.world.jobs:
            assert job.sent or not job.opened or job.source is not self.world.workers[job.place]


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
