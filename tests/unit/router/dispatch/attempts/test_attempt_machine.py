"""Hypothesis interleaves everything that may happen to one sequence: its workers and their streams, handoffs,
moves, workers that end, timeouts, and a client that leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.dispatch.attempts.attempt import Attempt
from router.dispatch.attempts.disagg_attempt import DisaggAttempt
from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.token_stream import DeliveryQueue, Delta, TokenStream
from router.dispatch.waterfall import Waterfall
from router.placement.account.load import TaskPhase
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_PREFILL
from tests.unit.router.dispatch.attempts.fake_session import ManualClockLoop
from tests.unit.router.dispatch.attempts.played_workers import Handoff, Job, PlayedWorker, Stage, token_at

PROMPT = list(range(10))
LENGTH = 8
IMAGE = worker_pb2.MediaItem(offset=3, length=2, arrays=[worker_pb2.MediaArray(name="pixels", data=b"0")])
ANSWER = [token_at(position) for position in range(LENGTH)]
MOVE_S = 5.0
MOST_ENDS = 3


class AttemptMachine(RuleBasedStateMachine):
    @initialize(disagg=st.booleans())
    def start(self, disagg: bool) -> None:
        self.loop = ManualClockLoop()
        self.network: dict[int, Handoff] = {}
        self.workers = [PlayedWorker(name, self.network) for name in "abc"]
        self.gone: list[PlayedWorker] = []
        self.disagg = disagg
        self.sequence = SequenceState(
            worker_pb2.Work(
                prompt=PROMPT, sampling=sampling_pb2.SamplingParams(max_tokens=LENGTH), media=[IMAGE]
            ),
            Waterfall(0.0),
        )
        self.answer: list[int] = []
        self.stream = self.sequence.stream = TokenStream(self.hear)
        self.stream.queue = DeliveryQueue()
        self.moves: list[asyncio.Task[bool]] = []
        self.attempts, self.excuses = 0, 0
        self.reads = True
        self.attempt: Any = None
        self.client = self.loop.create_task(self.read())
        self.settle()

    def settle(self, act: Callable[[], object] = lambda: None) -> None:
        """`act`, and everything that follows from it without another step of a worker."""

        async def acting() -> None:
            act()
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(acting())

    async def read(self) -> bool:
        """Whether the answer was finished."""
        while True:
            self.attempts += 1
            self.attempt = self.make_attempt()
            try:
                finish = await self.attempt.run()
                await self.stream.drained()
                return bool(finish)
            except AttemptFailed:
                await asyncio.sleep(0)

    def hear(self, delta: Delta) -> bool:
        self.answer += delta.token_ids
        return False

    def make_attempt(self) -> Attempt:
        first, second, _ = self.workers
        if not self.disagg:
            return MixedAttempt(self.sequence, Route(lambda _: first, is_local=True, why=""))
        route = Route(lambda role: first if role == ROLE_PREFILL else second, is_local=False, why="")
        return DisaggAttempt(self.sequence, route, 10.0)

    # ------------------------------------------------------------------------------ workers and streams

    def sending(self) -> list[PlayedWorker]:
        return [worker for worker in self.workers if worker.events]

    def asked(self) -> list[PlayedWorker]:
        return [worker for worker in self.workers if worker.commands]

    def asked_to_reserve(self) -> list[PlayedWorker]:
        return [worker for worker in self.asked() if worker.commands[0].WhichOneof("kind") == "reserve"]

    def computing(self) -> list[tuple[PlayedWorker, Job]]:
        return [(worker, job) for worker in self.workers for job in worker.can_compute()]

    def arriving(self) -> list[tuple[PlayedWorker, Handoff]]:
        return [(worker, handoff) for worker in self.workers for handoff in worker.can_accept()]

    def accepted(self) -> list[Handoff]:
        return [handoff for handoff in self.network.values() if handoff.stage is Stage.ACCEPTED]

    def attached(self) -> list[Handoff]:
        return [handoff for handoff in self.network.values() if handoff.job is not None]

    @precondition(lambda self: self.sending())
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        self.settle(data.draw(st.sampled_from(self.sending())).deliver)

    @precondition(lambda self: self.asked())
    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.asked())).obey()

    @precondition(lambda self: self.computing())
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        worker, job = data.draw(st.sampled_from(self.computing()))
        worker.compute(job)

    @precondition(lambda self: self.arriving())
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        worker, handoff = data.draw(st.sampled_from(self.arriving()))
        worker.accept(handoff)

    @precondition(lambda self: self.accepted())
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        handoff = data.draw(st.sampled_from(self.accepted()))
        assert handoff.source is not None
        handoff.source.confirm(handoff)

    def play_round(self) -> None:
        """One step of everything that can go on."""
        self.settle()
        for worker in self.asked():
            worker.obey()
        for worker, handoff in self.arriving():
            worker.accept(handoff)
        for handoff in self.accepted():
            assert handoff.source is not None
            handoff.source.confirm(handoff)
        for worker, job in self.computing():
            worker.compute(job)
        for worker in self.sending():
            self.settle(worker.deliver)

    # ------------------------------------------------------------------------------ faults

    @precondition(lambda self: self.asked_to_reserve())
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.asked_to_reserve()))
        self.excuses += worker.commands[0].reserve.room_tokens == 0  # then no move, but a prompt's handoff
        worker.refuse()

    @precondition(lambda self: self.attached())
    @rule(data=st.data())
    def break_off(self, data: st.DataObject) -> None:
        handoff = data.draw(st.sampled_from(self.attached()))
        assert handoff.source is not None
        assert handoff.job is not None
        self.excuses += handoff.job.hand_off
        handoff.source.fail(handoff)

    @precondition(lambda self: len(self.gone) < MOST_ENDS)
    @rule(data=st.data())
    def end_worker(self, data: st.DataObject) -> None:
        """Another process takes its place."""
        place = data.draw(st.integers(0, 2))
        self.excuses += 1
        before = self.workers[place]
        self.workers[place] = PlayedWorker(before.worker_id, self.network)
        self.gone.append(before)
        self.settle(before.end)

    # ------------------------------------------------------------------------------ the router

    def movable(self) -> bool:
        return self.attempt is not None and self.attempt.decoder is not None and not self.client.done()

    @precondition(lambda self: self.movable())
    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        target = data.draw(st.sampled_from(self.workers))
        self.moves.append(self.loop.create_task(self.attempt.migrate(target, MOVE_S)))
        self.settle()

    @precondition(lambda self: any(not move.done() for move in self.moves))
    @rule()
    def time_out_moves(self) -> None:
        self.excuses += 1  # the answer may have left its source already
        self.loop.now += MOVE_S + 1.0
        self.settle()
        assert all(move.done() for move in self.moves)

    @rule()
    def the_client_reads_or_stops_reading(self) -> None:
        self.reads = not self.reads
        self.settle(self.stream.resume if self.reads else self.stream.pause)

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        """Everything goes as it should."""
        for _ in range(rounds):
            self.play_round()

    @precondition(lambda self: not self.client.done())
    @rule(sure=st.integers(0, 9))
    def leave(self, sure: int) -> None:
        if sure < 9:
            return
        self.client.cancel()
        self.settle()
        assert self.client.done()

    # ------------------------------------------------------------------------------ what must hold

    @invariant()
    def the_client_has_a_prefix_of_the_answer(self) -> None:
        if hasattr(self, "answer"):
            assert self.answer == ANSWER[: len(self.answer)]
            assert self.sequence.output == self.answer + self.stream.delta.token_ids
            assert self.sequence.output == ANSWER[: len(self.sequence.output)]

    @invariant()
    def nothing_is_computed_again_without_a_reason(self) -> None:
        if hasattr(self, "answer"):
            assert self.attempts <= 1 + self.excuses

    @invariant()
    def every_worker_s_load_is_that_of_the_parts_that_it_has(self) -> None:
        if getattr(self, "attempt", None) is None:
            return
        for worker in [*self.workers, *self.gone]:
            assigned = [one for one in self.attempt._assignments if one.active and one.session is worker]
            assert worker.load.requests == len(assigned)
            assert worker.load.tokens == sum(one.task.uncached for one in assigned)
            decoding = [one.task for one in assigned if one.task.phase is TaskPhase.DECODE]
            assert worker.load.context_tokens == sum(task.context_tokens for task in decoding)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.settle(self.stream.resume)
        for _ in range(1000):
            self.play_round()
            if not (self.sending() or self.asked() or self.computing() or self.arriving() or self.accepted()):
                break
        assert self.client.done(), "the sequence hangs"
        if not self.client.cancelled():
            assert self.client.result()
            assert self.answer == ANSWER
        assert all(move.done() for move in self.moves)
        for worker in [*self.workers, *self.gone]:
            assert not worker.jobs, "a worker computes a request that has ended"
            assert not worker.listeners
            assert (worker.load.requests, worker.load.tokens) == (0, 0)
            assert not worker.load.cached._expected
            assert worker.load.idle.is_set()
        assert not self.network, "pages are reserved for nothing"
        self.loop.close()


TestAttemptMachine = AttemptMachine.TestCase
TestAttemptMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_an_answer_whose_move_was_refused_runs_on_and_moves_at_the_next_try() -> None:
    played = AttemptMachine()
    played.start(disagg=False)
    while not played.movable():
        played.play_round()
    target = played.workers[1]
    for refused in (True, False):
        played.moves.append(played.loop.create_task(played.attempt.migrate(target, MOVE_S)))
        played.settle()
        if refused:
            target.refuse()
            played.settle(target.deliver)
    while not played.moves[-1].done():
        played.play_round()
    assert [move.result() for move in played.moves] == [False, True]
    assert played.attempts == 1
    played.teardown()


def test_a_move_reserves_room_for_no_more_than_the_answer_may_have() -> None:
    played = AttemptMachine()
    played.start(disagg=False)
    while not played.answer:
        played.play_round()
    while not played.client.done():
        assert played.attempt.tokens_to_reserve == len(PROMPT) + LENGTH
        played.play_round()
    played.teardown()


def test_an_answer_that_came_while_its_client_was_busy_outlives_its_worker() -> None:
    played = AttemptMachine()
    played.start(disagg=False)
    while not played.answer:
        played.play_round()
    played.stream.pause()
    while played.computing() or played.sending():
        played.play_round()
    assert len(played.answer) < LENGTH
    (worker, *_) = played.workers
    played.settle(worker.end)
    played.gone.append(worker)
    played.workers[0] = PlayedWorker(worker.worker_id, played.network)
    played.teardown()
    assert played.attempts == 1
