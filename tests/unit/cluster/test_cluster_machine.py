"""Hypothesis plays a whole cluster: attempts of the router, three workers with engines and KV endpoints, and
a network that does its worst. Prompts are handed off, answers move, requests are preempted,
clients leave, workers end and are replaced, and time passes, all at any moment.

Every client has a prefix of the only right answer at any time; every page has one owner; no write is under
way to a page that was not lent. In the end every answer is complete, and nothing is left of it anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.dispatch.attempts.attempt import Attempt, MixedAttempt
from router.dispatch.attempts.disagg_attempt import DisaggAttempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.selector import Route
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2
from rpc.baton.v1.worker_pb2 import ROLE_PREFILL
from tests.kv_network import InFlightMessage, Network
from tests.unit.cluster.whole_worker import HANDOFF_TIMEOUT_S, WholeWorker
from tests.unit.engine.fake_runner import reference
from tests.unit.router.dispatch.attempts.fake_session import ManualClockLoop

WORKERS = 3
MOST_CLIENTS = 5
MOST_ENDS = 3
MOVE_S = 5.0
INDEX = st.integers(0, 10**6)


def pick(items: Any, index: int) -> Any:
    return items[index % len(items)]


@dataclass(eq=False)
class Client:
    sequence: SequenceState
    places: list[int]
    """Of the workers of its attempts, in turn."""
    right: list[int]
    attempt: Any = None
    task: Any = None


class ClusterMachine(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(15, 24),
        chunk=st.sampled_from([4, 8, 13]),
        overlap=st.booleans(),
        radix=st.booleans(),
    )
    def start(self, pages: int, chunk: int, overlap: bool, radix: bool) -> None:
        self.loop = ManualClockLoop()
        self.unnoticed: list[str] = []
        self.network = Network(unnoticed=self.unnoticed)
        self.engine = {"num_pages": pages, "chunk_budget": chunk, "overlap": overlap, "radix_cache": radix}
        self.epochs = 0
        self.workers = [self.make_worker(f"w{i}") for i in range(WORKERS)]
        self.gone: list[WholeWorker] = []
        self.clients: list[Client] = []
        self.moves: list[asyncio.Task[bool]] = []

    def make_worker(self, name: str) -> WholeWorker:
        self.epochs += 1
        return WholeWorker(name, self.epochs, self.network, self.loop.time, **self.engine)

    def settle(self, act: Callable[[], object] = lambda: None) -> None:
        """`act`, and what the router does about it."""

        async def acting() -> None:
            act()
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(acting())

    # ------------------------------------------------------------------------------ clients

    async def read(self, client: Client) -> None:
        while True:
            client.attempt = self.make_attempt(client)
            try:
                await client.attempt.run()
            except AttemptFailed:
                await asyncio.sleep(0.05)
            else:
                return

    def make_attempt(self, client: Client) -> Attempt:
        places = client.places
        first, second = (self.workers[place] for place in places[:2])
        client.places = [*places[2:], *places[:2]]
        sequence: Any = client.sequence
        if first is second:
            return MixedAttempt(sequence, Route(lambda _: first, is_local=True, why=""))

        def choose(role: int) -> Any:
            return first if role == ROLE_PREFILL else second

        route = Route(choose, is_local=False, why="", may_wait=first.worker_id < second.worker_id)
        return DisaggAttempt(sequence, route, HANDOFF_TIMEOUT_S)

    @precondition(lambda self: len(self.clients) < MOST_CLIENTS)
    @rule(
        prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
        length=st.sampled_from([1, 2, 12, 40, 40, 40]),
        places=st.lists(st.integers(0, WORKERS - 1), min_size=4, max_size=4),
        rounds=st.integers(0, 12),
    )
    def a_client_comes(self, prompt: list[int], length: int, places: list[int], rounds: int) -> None:
        """And gets so far, so that most runs come to the interesting places."""
        sampling = sampling_pb2.SamplingParams(
            max_tokens=length, top_p=1.0, repetition_penalty=1.0, ignore_eos=True
        )
        sequence = SequenceState(prompt, sampling, Waterfall(0.0))
        client = Client(sequence, places, reference(prompt, length, ignore_eos=True))
        self.clients.append(client)
        client.task = self.loop.create_task(self.read(client))
        self.settle()
        self.go_on(rounds)

    def served(self) -> list[Client]:
        return [client for client in self.clients if not client.task.done()]

    @precondition(lambda self: self.served())
    @rule(index=INDEX, sure=st.integers(0, 3))
    def a_client_leaves(self, index: int, sure: int) -> None:
        if not sure:
            self.settle(pick(self.served(), index).task.cancel)

    def movable(self) -> list[Client]:
        return [client for client in self.served() if client.attempt and client.attempt.decoder is not None]

    @precondition(lambda self: self.movable())
    @rule(index=INDEX, place=st.integers(0, WORKERS - 1), rounds=st.integers(0, 5))
    def move(self, index: int, place: int, rounds: int) -> None:
        client = pick(self.movable(), index)
        self.moves.append(self.loop.create_task(client.attempt.migrate(self.workers[place], MOVE_S)))
        self.settle()
        self.go_on(rounds)

    # ------------------------------------------------------------------------------ workers

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        """Everything goes as it should."""
        for _ in range(rounds):
            self.play_round()

    @rule(place=st.integers(0, WORKERS - 1))
    def commands_arrive(self, place: int) -> None:
        while self.workers[place].commands:
            self.workers[place].take_command()

    @rule(place=st.integers(0, WORKERS - 1), block=st.booleans())
    def turn(self, place: int, block: bool) -> None:
        self.workers[place].turn(block=block)

    @rule(place=st.integers(0, WORKERS - 1))
    def transfer(self, place: int) -> None:
        self.workers[place].transfer()

    @rule(place=st.integers(0, WORKERS - 1))
    def events_arrive(self, place: int) -> None:
        while self.workers[place].says:
            self.settle(self.workers[place].tell)

    @rule(seconds=st.sampled_from([0.3, 1.5, HANDOFF_TIMEOUT_S]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()

    @precondition(lambda self: len(self.gone) < MOST_ENDS)
    @rule(place=st.integers(0, WORKERS - 1), sure=st.integers(0, 2))
    def a_worker_ends(self, place: int, sure: int) -> None:
        """Another process takes its place."""
        if sure:
            return
        before = self.workers[place]
        self.gone.append(before)
        self.workers[place] = self.make_worker(before.worker_id)
        self.settle(before.lose)

    # ------------------------------------------------------------------------------ the network

    @precondition(lambda self: self.unnoticed)
    @rule()
    def notice(self) -> None:
        self.network.notice(self.unnoticed.pop(0))

    @precondition(lambda self: self.network.writes)
    @rule(index=INDEX, damaged=st.booleans())
    def complete(self, index: int, damaged: bool) -> None:
        write = pick(self.network.writes, index)
        if damaged and write.copies and write.target not in self.network.closed:
            self.network.land(write, flip_bit=True)
        self.network.complete(write)

    @precondition(lambda self: self.network.writes)
    @rule(index=INDEX, pieces=st.integers(0, 2), flip=st.booleans())
    def fail(self, index: int, pieces: int, flip: bool) -> None:
        """A write fails, after some of it has arrived, perhaps damaged."""
        write = pick(self.network.writes, index)
        if write.target not in self.network.closed:
            for _ in range(min(pieces, len(write.copies))):
                self.network.land(write, flip_bit=flip)
        self.network.fail(write)

    @precondition(lambda self: self.network.messages)
    @rule(index=INDEX)
    def deliver(self, index: int) -> None:
        self.network.deliver(pick(self.network.messages, index))

    @precondition(lambda self: self.network.messages)
    @rule(index=INDEX)
    def drop(self, index: int) -> None:
        self.network.messages.remove(pick(self.network.messages, index))

    @precondition(lambda self: self.network.messages)
    @rule(index=INDEX)
    def double(self, index: int) -> None:
        message = pick(self.network.messages, index)
        self.network.messages.append(InFlightMessage(message.target, message.data))

    def play_round(self) -> None:
        while self.unnoticed:
            self.notice()
        for write in list(self.network.writes):
            self.network.complete(write)
        for message in list(self.network.messages):
            self.network.deliver(message)
        for place in range(WORKERS):
            self.commands_arrive(place)
            self.transfer(place)
            self.turn(place, True)
            self.transfer(place)
            self.events_arrive(place)

    # ------------------------------------------------------------------------------ what must hold

    @invariant()
    def every_client_has_a_prefix_of_the_right_answer(self) -> None:
        for client in getattr(self, "clients", ()):
            assert client.sequence.output == client.right[: len(client.sequence.output)]
            if client.task.done() and not client.task.cancelled():
                client.task.result()

    @invariant()
    def every_page_has_one_owner(self) -> None:
        for worker in getattr(self, "workers", ()):
            worker.check(self.network)

    def teardown(self) -> None:
        if not hasattr(self, "clients"):
            return
        for _ in range(600):
            if not self.served() and all(worker.is_at_rest for worker in self.workers):
                break
            self.time_passes(0.2)
            self.go_on(1)
            self.every_client_has_a_prefix_of_the_right_answer()
        for client in self.clients:
            assert client.task.done(), "a sequence hangs"
            assert client.task.cancelled() or client.sequence.output == client.right
        assert all(move.done() for move in self.moves)
        for worker in self.workers:
            worker.check_at_rest()
        for worker in self.gone:
            assert (worker.load.requests, worker.load.tokens) == (0, 0)
        self.loop.close()


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
