"""The planner of updates one worker after another, alone and with requests, failures and losses."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.dispatch.weights.rolling import Phase, Rolling, Updatable

OLD, NEW, BROKEN = "old", "new", "incomplete"
PREFILL, DECODE = 1, 2


def fleet(prefill: int, decode: int) -> list[Updatable]:
    return [Updatable(f"p{i}", PREFILL, OLD) for i in range(prefill)] + [
        Updatable(f"d{i}", DECODE, OLD) for i in range(decode)
    ]


def order(workers: list[Updatable]) -> list[str]:
    """The workers in the order of their updates."""
    rolling, found = Rolling(OLD, NEW), []
    while (chosen := rolling.next(workers)) is not None:
        found.append(chosen.id)
        rolling.updated(chosen.id, "digest")
        workers = [Updatable(w.id, w.role, NEW) if w.id == chosen.id else w for w in workers]
    assert rolling.phase is Phase.DONE
    return found


def test_pairs_of_both_roles_get_the_new_weights_soon() -> None:
    assert order(fleet(2, 2)) == ["p0", "d0", "p1", "d1"]
    assert order(fleet(1, 3)) == ["d0", "d1", "p0", "d2"]


def test_requests_have_the_new_weights_first_and_the_old_ones_first_after_a_refusal() -> None:
    rolling = Rolling(OLD, NEW)
    workers = fleet(0, 2)
    assert (rolling.versions, rolling.next(workers)) == ((NEW, OLD), workers[0])
    rolling.refused("d0", "no such folder")
    assert (rolling.versions, rolling.next(workers)) == ((OLD, NEW), None)
    assert (rolling.phase, rolling.versions) == (Phase.FAILED, (OLD,))


def test_a_worker_that_does_not_take_the_old_weights_back_gets_no_requests() -> None:
    rolling = Rolling(OLD, NEW)
    rolling.updated("d0", "digest")
    rolling.refused("d1", "no memory")
    workers = [Updatable("d0", DECODE, NEW), Updatable("d1", DECODE, OLD)]
    assert rolling.next(workers) == workers[0]
    rolling.refused("d0", "its old folder is gone")
    assert rolling.next(workers) is None
    assert (rolling.versions, list(rolling.left_out)) == ((OLD,), ["d0"])


def test_a_worker_that_ends_at_each_update_ends_the_update() -> None:
    rolling = Rolling(OLD, NEW)
    for _ in range(2):
        rolling.lost("d0")
        assert rolling.phase is Phase.FORWARD
    rolling.lost("d0")
    assert rolling.phase is Phase.BACK


def test_without_a_worker_the_update_fails() -> None:
    rolling = Rolling(OLD, NEW)
    assert rolling.next([]) is None
    assert rolling.phase is Phase.FAILED


def test_a_worker_that_is_updated_alone_is_named() -> None:
    rolling = Rolling(OLD, NEW)
    rolling.next(fleet(0, 1))
    assert rolling.alone == ["d0"]
    assert not Rolling(OLD, NEW).alone


@dataclass
class Worker:
    id: str
    role: int
    tag: str = OLD
    connected: bool = True


@dataclass
class Sequence:
    worker: Worker | None = None
    pages: list[str] = field(default_factory=list)
    """Weights that have computed each page."""


class Updates(RuleBasedStateMachine):
    """Workers, requests on them, and one update: what a router does with the planner's answers."""

    def __init__(self) -> None:
        super().__init__()
        self.rolling = Rolling(OLD, NEW)
        self.updating: Worker | None = None
        self.ended = False

    @initialize(prefill=st.integers(0, 3), decode=st.integers(1, 3), requests=st.integers(1, 4))
    def start(self, prefill: int, decode: int, requests: int) -> None:
        self.workers = [Worker(w.id, w.role) for w in fleet(prefill, decode)]
        self.requests = [Sequence() for _ in range(requests)]

    def serving(self) -> list[Worker]:
        """Workers that may get requests, those of the first weights first."""
        versions = self.rolling.versions
        found = [w for w in self.workers if w.connected and w is not self.updating and w.tag in versions]
        return sorted(found, key=lambda worker: versions.index(worker.tag))

    def leave(self, worker: Worker) -> None:
        """Its requests move to a worker of the same weights with their pages, or lose these."""
        for request in self.requests:
            if request.worker is worker:
                peers = [w for w in self.serving() if w.tag == worker.tag and w is not worker]
                request.worker = peers[0] if peers else None
                request.pages = request.pages if peers else []

    @precondition(lambda self: self.updating is None and not self.ended)
    @rule()
    def begin(self) -> None:
        connected = [Updatable(w.id, w.role, w.tag) for w in self.workers if w.connected]
        alone = len(self.rolling.alone)
        chosen = self.rolling.next(connected)
        if chosen is None:
            self.ended = True
            return
        (self.updating,) = (worker for worker in self.workers if worker.id == chosen.id)
        assert self.updating.tag != self.rolling.target
        assert self.serving() or len(self.rolling.alone) == alone + 1
        self.leave(self.updating)

    @precondition(lambda self: self.updating is not None)
    @rule(outcome=st.sampled_from(["updated", "updated", "updated", "refused", "incomplete", "lost"]))
    def finish(self, outcome: str) -> None:
        worker, self.updating = self.updating, None
        assert worker is not None
        assert all(request.worker is not worker for request in self.requests)
        if outcome == "updated":
            worker.tag = self.rolling.target
            self.rolling.updated(worker.id, "digest")
        elif outcome == "lost":
            worker.connected = False
            self.rolling.lost(worker.id)
        else:
            worker.tag = BROKEN if outcome == "incomplete" else worker.tag
            self.rolling.refused(worker.id, outcome)

    @rule(index=st.integers(0, 5))
    def kill(self, index: int) -> None:
        worker = self.workers[index % len(self.workers)]
        if worker.connected and worker is not self.updating:
            worker.connected = False
            for request in self.requests:
                if request.worker is worker:
                    request.worker, request.pages = None, []

    @rule(index=st.integers(0, 5), restarted=st.booleans())
    def come_back(self, index: int, restarted: bool) -> None:
        """With weights that requests may have: a router updates a worker before it uses it."""
        worker = self.workers[index % len(self.workers)]
        if worker.connected:
            return
        worker.connected = True
        if restarted or worker.tag not in self.rolling.versions:
            forward = self.rolling.phase in (Phase.FORWARD, Phase.DONE) and self.rolling.digest
            worker.tag = NEW if forward else OLD

    @rule(index=st.integers(0, 3))
    def place(self, index: int) -> None:
        request, serving = self.requests[index % len(self.requests)], self.serving()
        if request.worker is None and serving:
            request.worker = serving[0]
            assert request.worker.tag == self.rolling.versions[0] or not any(
                worker.tag == self.rolling.versions[0] for worker in serving
            )

    @rule(index=st.integers(0, 3))
    def compute(self, index: int) -> None:
        request = self.requests[index % len(self.requests)]
        if request.worker is not None:
            request.pages.append(request.worker.tag)

    @invariant()
    def no_request_has_pages_of_two_versions(self) -> None:
        assert all(len(set(request.pages)) <= 1 for request in getattr(self, "requests", ()))

    @invariant()
    def no_request_is_on_incomplete_weights(self) -> None:
        assert all(r.worker is None or r.worker.tag != BROKEN for r in getattr(self, "requests", ()))

    @invariant()
    def an_update_ends_in_one_version(self) -> None:
        if self.ended:
            assert self.rolling.versions == (self.rolling.target,)
            left = {worker.tag for worker in self.serving()}
            assert left <= {self.rolling.target}

    def teardown(self) -> None:
        """Every update ends."""
        for _ in range(100):
            if self.updating is not None:
                self.finish("updated")
            elif not self.ended:
                self.begin()
        assert self.ended
        for worker in self.workers:
            self.come_back(self.workers.index(worker), restarted=True)
        assert len({worker.tag for worker in self.serving()}) == 1


TestUpdates = Updates.TestCase
TestUpdates.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_an_encode_worker_serves_no_requests_meanwhile() -> None:
    encoder = Updatable("e0", 3, OLD, computes=False)
    rolling = Rolling(OLD, NEW)
    assert rolling.next([Updatable("d0", DECODE, OLD), encoder]) is not None
    assert rolling.alone == ["d0"]
    rolling = Rolling(OLD, NEW)
    assert rolling.next([Updatable("d0", DECODE, NEW), encoder]) == encoder
    assert not rolling.alone
