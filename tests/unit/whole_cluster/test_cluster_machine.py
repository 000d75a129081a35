"""Hypothesis plays a whole cluster: attempts of the router, three workers with engines and KV endpoints, and
a network that does its worst. Prompts are handed off, prefixes pulled, answers move, requests are preempted,
clients leave, caches are cleared, adapters are loaded, fetched and unloaded, workers end and are replaced,
and time passes, all at any moment; with every kind of KV, with and without tiers, drafts and retained
prefixes. Equal prompts have several origins, among them adapters, also activated ones. Some clients want
log-probabilities of labels and no answer; of some models all want vectors.

Every client has a prefix of the only right answer at any time, or the only right numbers, once; every page
has one owner; no write is under way to a page that was not lent. In the end every answer is complete, and
nothing is left of it anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.config import Policy
from engine.core.adapters import AdapterInfo
from engine.model_config.parts.layer_options import Pooling
from router.dispatch.attempts.attempt import Attempt
from router.dispatch.attempts.disagg_attempt import DisaggAttempt
from router.dispatch.attempts.mixed_attempt import MixedAttempt
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import CachedElsewhere, Route
from rpc.baton.v1 import worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_PREFILL
from tests.kv_network import InFlightMessage, Network
from tests.unit.engine.fake_adapters import digest_of
from tests.unit.router.dispatch.attempts.fake_session import ManualClockLoop
from tests.unit.whole_cluster.clients import Client, client_of
from tests.unit.whole_cluster.questions import ADAPTERS, QUESTIONS, WORKERS, Question
from tests.unit.whole_cluster.whole_worker import HANDOFF_TIMEOUT_S, PAGE, Kind, WholeWorker
from worker.session.convert import adapter_answer

MOST_CLIENTS = 5
"""At a time, when others come."""
MOST_ENDS = 3
MOVE_S = 5.0
INDEX = st.integers(0, 10**6)
WINDOWS: list[tuple[int | None, ...]] = [(None,), (None, 3), (5,), (2, None, 9)]
POOLINGS = [None, None, None, Pooling.LAST, Pooling.MEAN, Pooling.WEIGHTED_MEAN]
ORDERS: list[dict[str, Any]] = [{}, {"policy": Policy.PRIORITY, "priority_preemption_threshold": 0}]


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    """Plain ones among them: what needs many events is found with them."""
    windows, pooling = draw(st.sampled_from(WINDOWS)), draw(st.sampled_from(POOLINGS))
    return Kind(
        windows=windows,
        num_state_slots=draw(st.sampled_from([0, 6, 9])) if windows == (None,) else 0,
        host_slots=draw(st.sampled_from([0, 5, 40])),
        num_files=draw(st.sampled_from([0, 30])),
        right=None if pooling else draw(st.sampled_from([None, 0.0, 0.6, 1.0])),
        pooling=pooling,
        kept=None if pooling else draw(st.sampled_from([None, 1, 2])),
    )


def pick(items: Any, index: int) -> Any:
    return items[index % len(items)]


class ClusterMachine(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(15, 24),
        chunk=st.sampled_from([4, 8, 13]),
        overlap=st.booleans(),
        radix=st.sampled_from([True, True, True, False]),
        kind=kinds(),
        order=st.sampled_from(ORDERS),
        retained=st.sampled_from([0.0, 0.5]),
        before=st.lists(QUESTIONS, max_size=6),
    )
    def start(
        self,
        pages: int,
        chunk: int,
        overlap: bool,
        radix: bool,
        kind: Kind,
        order: dict[str, Any],
        retained: float,
        before: list[Question],
    ) -> None:
        """`before`: those that have been answered, and are in the caches."""
        self.loop = ManualClockLoop()
        self.unnoticed: list[str] = []
        self.network = Network(unnoticed=self.unnoticed)
        self.engine = {
            "num_pages": pages * len(kind.windows),
            "chunk_budget": chunk,
            "overlap": overlap,
            "radix_cache": radix,
            "retained_kv_share": retained,
            **order,
        }
        self.kind = kind
        self.epochs = 0
        self.workers: list[WholeWorker] = []
        self.workers = [self.make_worker(f"w{i}") for i in range(WORKERS)]
        self.gone: list[WholeWorker] = []
        self.clients: list[Client] = []
        self.moves: list[asyncio.Task[bool]] = []
        for question in before:
            self.clients_come([question], rounds=50)

    def make_worker(self, name: str) -> WholeWorker:
        self.epochs += 1
        return WholeWorker(
            name,
            self.epochs,
            self.network,
            self.loop.time,
            self.kind,
            fellows=lambda: self.workers,
            **self.engine,
        )

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
        first, second, third = (self.workers[place] for place in places[:3])
        client.places = [*places[2:], *places[:2]]
        sequence: Any = client.sequence
        elsewhere: Any = CachedElsewhere(third, client.pulled * PAGE) if client.pulled else None  # type: ignore[arg-type]
        if first is second or sequence.is_prefill_only:
            return MixedAttempt(sequence, Route(lambda _: first, is_local=True, why="", source=elsewhere))

        def choose(role: int) -> Any:
            return first if role == ROLE_PREFILL else second

        may_wait = first.worker_id < second.worker_id
        route = Route(choose, is_local=False, why="", may_wait=may_wait, source=elsewhere)
        return DisaggAttempt(sequence, route, HANDOFF_TIMEOUT_S)

    @precondition(lambda self: len(self.served()) < MOST_CLIENTS)
    @rule(asked=st.lists(QUESTIONS, min_size=1, max_size=3), rounds=st.sampled_from([0, 1, 3, 6, 12, 50]))
    def clients_come(self, asked: list[Question], rounds: int) -> None:
        """And get so far, so that most runs come to the interesting places."""
        for given in asked:
            question = given if self.kind.pooling is None else given.pooled(self.kind.pooling)
            for _ in range(question.answers):
                client = client_of(question)
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

    @rule(rounds=st.integers(1, 20))
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

    @precondition(lambda self: self.kind.host_slots)
    @rule(place=st.integers(0, WORKERS - 1))
    def copy(self, place: int) -> None:
        self.workers[place].copy()

    @precondition(lambda self: self.kind.host_slots)
    @rule(place=st.integers(0, WORKERS - 1), index=INDEX)
    def damage(self, place: int, index: int) -> None:
        """A bit of a copy in host memory, or a file."""
        copier = self.workers[place].copier
        if copier is not None and copier.slots:
            slot = pick(list(copier.slots), index)
            if (record := copier.records[slot]) and index % 3 == 0:
                place = index % len(record)
                copier.records[slot] = record[:place] + bytes([record[place] ^ 1]) + record[place + 1 :]
            else:
                copier.slots[slot][index % PAGE] ^= 1
        if copier is not None and copier.files and index % 2:
            del copier.files[pick(sorted(copier.files), index)]

    @rule(
        place=st.integers(0, WORKERS - 1),
        places=st.lists(st.sampled_from(["pool", "host", "disk"]), min_size=1, unique=True),
        key=st.sampled_from([None, "k"]),
    )
    def clear(self, place: int, places: list[str], key: str | None) -> None:
        request = worker_pb2.ManageCacheRequest(clear=places, key=key)
        handler = self.workers[place].worker.handler
        self.workers[place].inbox.append(lambda: handler.manage_cache(request))

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

    # ------------------------------------------------------------------------------ adapters

    @precondition(lambda self: self.kind.kept is not None)
    @rule(place=st.integers(0, WORKERS - 1))
    def read_adapter(self, place: int) -> None:
        self.workers[place].readers.work()

    @precondition(lambda self: self.kind.kept is not None)
    @rule(place=st.integers(1, WORKERS - 1), count=st.integers(1, 4))
    def fetches_fail(self, place: int, count: int) -> None:
        self.workers[place].copies.failing = count

    @precondition(lambda self: self.kind.kept is not None)
    @rule(
        place=st.integers(1, WORKERS - 1),
        content=st.sampled_from(ADAPTERS),
        how=st.sampled_from(["load", "ahead", "unload"]),
    )
    def change(self, place: int, content: str, how: str) -> None:
        """The router has an adapter loaded or unloaded, whatever is under way."""
        worker = self.workers[place]
        adapters, digest = worker.worker.handler.adapters, digest_of(content)
        wanted = worker_pb2.LoadAdapterRequest(
            name=content, path=content, digest=digest, sources=worker.adapters.sources(digest)
        )

        def load() -> AdapterInfo:
            return adapters.add(adapters.read(wanted))

        if how == "ahead":
            worker.send(worker_pb2.Command(load=wanted))
        else:
            act = load if how == "load" else partial(adapters.unload, digest)
            worker.inbox.append(partial(adapter_answer, act))

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
            self.workers[place].copy()
            self.workers[place].readers.work()
            self.transfer(place)
            self.events_arrive(place)

    # ------------------------------------------------------------------------------ what must hold

    @invariant()
    def every_client_has_a_prefix_of_the_right_answer(self) -> None:
        for client in getattr(self, "clients", ()):
            assert client.sequence.output == client.right[: len(client.sequence.output)]
            client.check_outputs()
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
            assert client.task.cancelled() or client.is_answered
        assert all(move.done() for move in self.moves)
        for worker in self.workers:
            worker.check_at_rest()
        for worker in self.gone:
            assert (worker.load.requests, worker.load.tokens) == (0, 0)
        self.loop.close()


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
