"""Routers that share workers: adapters are loaded, loaded again with another content, unloaded
and evicted, requests come and end, workers end and are replaced, and calls to workers take any time.

A request is computed by the content that its name had at its admission, or not at all. A worker holds the
content of a running request until its end. In the end every router shows the same adapters, every worker has
them, and nothing else is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.origin import namespace_of
from router.cluster.record import ClusterRecord
from router.cluster.shared_record import adapter_record
from router.dispatch.adapters.adapters import ServedAdapters
from router.dispatch.adapters.table import Life, Use
from router.errors import RouterError
from tests.unit.router.cluster.key_values import KeyValues
from tests.unit.router.dispatch.adapters.fake_processes import Asked, Process, Sessions
from tests.unit.router.dispatch.attempts.fake_session import ManualClockLoop

NAMES = ("sql", "poet")
CONTENTS = (b"one", b"two")
ROUTERS = 2
WORKERS = 3
INDEX = st.integers(0, 10**6)
ROUNDS = st.sampled_from([0, 1, 4, 4])
"""After a call, so that most runs come to the interesting places."""


class AdapterMachine(RuleBasedStateMachine):
    @initialize(slow=st.booleans())
    def start(self, slow: bool) -> None:
        self.slow = slow
        self.loop = ManualClockLoop()
        self.store = KeyValues()
        self.disk = dict.fromkeys((f"/{name}" for name in NAMES), CONTENTS[0])
        self.workers = [Process(self) for _ in range(WORKERS)]
        self.registries = [Sessions(self, f"router-{i}") for i in range(ROUTERS)]
        self.routers = [self.router(registry) for registry in self.registries]
        self.asked: list[Asked] = []
        self.count = 0
        self.tasks: list[asyncio.Task[Any]] = []
        self.turns: dict[int, asyncio.Task[Any]] = {}
        for index in range(ROUTERS):
            self.keep_in_step(index)
        self.settle()

    def router(self, registry: Any) -> ServedAdapters:
        record = ClusterRecord(self.store, "m")

        async def ask(use: Callable[[ClusterRecord], object]) -> object:
            await asyncio.sleep(0)
            return use(record)

        return ServedAdapters(registry, adapter_record(ask), "m", clock=self.loop.time)

    def settle(self, rounds: int = 12) -> None:
        async def settling() -> None:
            for _ in range(rounds):
                await asyncio.sleep(0)

        self.loop.run_until_complete(settling())

    def begin(self, call: Any) -> None:
        async def tried() -> None:
            with contextlib.suppress(RouterError):
                await call

        self.tasks.append(self.loop.create_task(tried()))
        self.settle()

    # ------------------------------------------------------------------------------ the operator

    @rule(
        router=st.integers(0, ROUTERS - 1),
        name=st.sampled_from(NAMES),
        content=st.sampled_from([*CONTENTS, b""]),
        in_place=st.sampled_from([True, True, False]),
        rounds=ROUNDS,
    )
    def load(self, router: int, name: str, content: bytes, in_place: bool, rounds: int) -> None:
        """The folder may be written again while it is loaded."""
        self.disk[f"/{name}"] = content
        self.begin(self.routers[router].load(name, f"/{name}", in_place=in_place))
        self.go_on(rounds)

    @rule(router=st.integers(0, ROUTERS - 1), name=st.sampled_from(NAMES), rounds=ROUNDS)
    def unload(self, router: int, name: str, rounds: int) -> None:
        self.begin(self.routers[router].unload(name))
        self.go_on(rounds)

    @rule(rounds=st.integers(1, 6))
    def go_on(self, rounds: int) -> None:
        """Everything goes as it should."""
        for _ in range(rounds):
            for place, process in enumerate(self.workers):
                while process.calls:
                    self._answer(process)
                self.loads_end(place)
            self.time_passes(0.5)

    @rule(name=st.sampled_from(NAMES), content=st.sampled_from(CONTENTS))
    def write(self, name: str, content: bytes) -> None:
        self.disk[f"/{name}"] = content

    # ------------------------------------------------------------------------------ clients

    @rule(router=st.integers(0, ROUTERS - 1), name=st.sampled_from(NAMES))
    def ask(self, router: int, name: str) -> None:
        adapter = self.routers[router].names.get(name)

        async def admit() -> Use | None:
            try:
                return self.routers[router].use(name)
            except RouterError:
                return None

        if (use := self.loop.run_until_complete(admit())) is None:
            assert adapter is None
            return
        assert adapter is not None
        self.count += 1
        self.asked.append(Asked(self.count, use, adapter.digest))

    @precondition(lambda self: any(asked.process is None for asked in self.asked))
    @rule(index=INDEX, router=st.integers(0, ROUTERS - 1), place=st.integers(0, WORKERS - 1))
    def place(self, index: int, router: int, place: int) -> None:
        """On a worker that has the adapter, or loads it for the request."""
        waiting = [asked for asked in self.asked if asked.process is None]
        asked, process = waiting[index % len(waiting)], self.workers[place]
        session = self.registries[router].session(place)
        digest = asked.use.adapter.digest
        if not session.adapters.may_use(digest):
            return
        session.adapters.brought(digest)
        asked.process, asked.placed_by = process, session
        if digest in process.loaded:
            process.running[asked.number] = digest
        else:
            process.coming[digest] = asked.use.adapter.path

    @precondition(lambda self: any(process.coming for process in self.workers))
    @rule(place=st.integers(0, WORKERS - 1))
    def loads_end(self, place: int) -> None:
        """The requests that wait for an adapter begin, or are refused."""
        process = self.workers[place]
        coming, process.coming = process.coming, {}
        for digest, path in coming.items():
            if (content := self.disk[path]) == digest:
                process.loaded.add(content)
            for asked in self.asked:
                if asked.process is not process or asked.use.adapter.digest != digest:
                    continue
                if digest in process.loaded:
                    process.running[asked.number] = digest
                else:
                    asked.process = None
                    asked.placed_by.adapters.refused(digest)

    @precondition(lambda self: self.asked)
    @rule(index=INDEX)
    def end(self, index: int) -> None:
        asked = self.asked.pop(index % len(self.asked))
        if asked.process is not None:
            asked.process.running.pop(asked.number, None)
        asked.use.end()

    # ------------------------------------------------------------------------------ workers

    @precondition(lambda self: any(process.calls for process in self.workers))
    @rule(index=INDEX)
    def answer(self, index: int) -> None:
        waiting = [process for process in self.workers if process.calls]
        self._answer(waiting[index % len(waiting)])

    def _answer(self, process: Process) -> None:
        call = process.calls.pop(0)
        if not call.done():
            call.set_result(None)
        self.settle()

    @rule(place=st.integers(0, WORKERS - 1), router=st.integers(0, ROUTERS - 1))
    def report(self, place: int, router: int) -> None:
        self.registries[router].session(place).adapters.report(self.workers[place].report())

    @rule(place=st.integers(0, WORKERS - 1))
    def a_worker_ends(self, place: int) -> None:
        """Its requests are tried again elsewhere, with the same adapter."""
        before, self.workers[place] = self.workers[place], Process(self)
        before.alive = False
        while before.calls:
            self._answer(before)
        for asked in self.asked:
            if asked.process is before:
                asked.process = None
        self.settle()

    @precondition(lambda self: any(process.loaded for process in self.workers))
    @rule(place=st.integers(0, WORKERS - 1), index=INDEX)
    def a_worker_evicts(self, place: int, index: int) -> None:
        process = self.workers[place]
        unused = sorted(process.loaded - set(process.running.values()))
        if unused:
            process.loaded.discard(unused[index % len(unused)])

    @rule(seconds=st.sampled_from([0.05, 0.5, 16.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()
        for index in range(ROUTERS):
            self.keep_in_step(index)

    def keep_in_step(self, index: int) -> None:
        turn = self.turns.get(index)
        if turn is None or turn.done():
            if turn is not None:
                turn.result()
            self.turns[index] = self.loop.create_task(self.routers[index].turn())
        self.settle()

    # ------------------------------------------------------------------------------ what must hold

    @invariant()
    def a_request_keeps_the_content_of_its_admission(self) -> None:
        for asked in getattr(self, "asked", ()):
            digest = asked.use.adapter.digest
            assert digest == asked.admitted_with
            if asked.process is not None and asked.process.alive and digest not in asked.process.coming:
                assert digest in asked.process.loaded, "it was unloaded under a running request"
                assert asked.process.running[asked.number] == digest

    @invariant()
    def contents_share_no_pages(self) -> None:
        spaces = {namespace_of(adapter=asked.admitted_with) for asked in getattr(self, "asked", ())}
        assert len(spaces) == len({asked.admitted_with for asked in getattr(self, "asked", ())})

    @invariant()
    def what_is_in_use_is_not_gone(self) -> None:
        for asked in getattr(self, "asked", ()):
            assert any(router.table.life(asked.admitted_with) is not Life.GONE for router in self.routers)

    @invariant()
    def calls_end_with_an_answer_or_a_refusal(self) -> None:
        for task in getattr(self, "tasks", ()):
            if task.done():
                task.result()

    def teardown(self) -> None:
        if not hasattr(self, "asked"):
            return
        while self.asked:
            self.end(0)
        for name in NAMES:
            found = self.routers[0].names.get(name) or self.routers[1].names.get(name)
            if found is not None:
                self.disk[f"/{name}"] = found.digest
        self.slow = False
        for _ in range(60):
            self.go_on(1)
            for place in range(WORKERS):
                for router in range(ROUTERS):
                    self.report(place, router)
            self.time_passes(0.6)
            if self._is_at_rest():
                break
        assert all(task.done() for task in self.tasks), "a call hangs"
        one, other = (router.names for router in self.routers)
        assert one == other
        digests = {adapter.digest for adapter in one.values()}
        for process in self.workers:
            assert digests <= process.loaded, "a worker lacks an adapter"
            for digest in process.loaded - digests:  # it was evicted, as far as the routers knew
                assert all(router.table.life(digest) is Life.GONE for router in self.routers)
        self.loop.run_until_complete(asyncio.gather(*self.turns.values()))
        self.loop.close()

    def _is_at_rest(self) -> bool:
        one, other = (router.names for router in self.routers)
        digests = {adapter.digest for adapter in one.values()}
        return (
            all(task.done() for task in self.tasks)
            and one == other
            and all(digests <= process.loaded for process in self.workers)
            and all(router.table.known == digests for router in self.routers)
        )


TestAdapterMachine = AdapterMachine.TestCase
TestAdapterMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_content_in_use_at_another_router_stays_on_the_workers() -> None:
    machine = AdapterMachine()
    machine.start(slow=False)
    machine.load(router=0, name="sql", content=b"one", in_place=True, rounds=4)
    machine.ask(router=1, name="sql")
    machine.load(router=0, name="sql", content=b"two", in_place=True, rounds=4)
    assert all(process.loaded == {b"one", b"two"} for process in machine.workers)
    machine.end(0)
    machine.go_on(4)
    assert all(process.loaded == {b"two"} for process in machine.workers)
    machine.teardown()
