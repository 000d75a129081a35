"""Selector: from sessions and a placement policy to routes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from common.block_hash import block_hashes
from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.route import Route
from router.dispatch.routing.selector import Selector
from router.dispatch.sequence import SequenceState
from router.dispatch.waterfall import Waterfall
from router.dispatch.workers.liveness import Liveness
from router.errors import Unavailable
from router.placement import (
    AdaptivePlacement,
    ClusterView,
    HandoffRule,
    Health,
    Placement,
    PlacementPolicy,
    Preference,
    RequestView,
    Targets,
    Why,
    WorkerView,
)
from router.placement.account.load import Task, TaskPhase
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.unit.router.dispatch.attempts.fake_session import FakeSession

PAGES = 100


class HandsOver(PlacementPolicy):
    """Places every request on (prefill, decode) workers by their names; records the views it gets."""

    handoffs = HandoffRule.ANY_WAY
    predicts = True

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        self.request, self.view = request, view
        by_name = {worker.id.partition("@")[0]: worker.id for worker in view.workers}
        return Placement(by_name["p"], by_name["d"], Why("test"))


def session(name: str, role: worker_pb2.Role, chunk: int = 0) -> FakeSession:
    info = worker_pb2.WorkerInfo(
        worker_id=name,
        role=role,
        page_size=16,
        num_pages=PAGES,
        max_model_len=512,
        chunked_prefill_size=chunk,
        peer=worker_pb2.Peer(page_bytes=1 << 20),
    )
    found = FakeSession(info, max_running_requests=8)
    found.load.report(worker_pb2.Load(total_pages=PAGES, free_pages=PAGES), 0)
    return found


class Workers:
    """The registry, as the selector uses it."""

    def __init__(self, *sessions: FakeSession) -> None:
        self.all = list(sessions)

    def ready(self, role: worker_pb2.Role) -> list[FakeSession]:
        return [session for session in self.all if session.role == role and session.alive]

    def sessions(self) -> list[FakeSession]:
        return self.all

    computing = sessions

    def complaints(self) -> list[str]:
        return []


class Served:
    def __init__(self, policy: Any = None) -> None:
        self.p, self.d = session("p", ROLE_PREFILL), session("d", ROLE_DECODE)
        self.policy = policy or HandsOver()
        self.workers: Any = Workers(self.p, self.d)
        self.selector = Selector(self.workers, lambda _: self.policy, clock=lambda: 1.0)

    def route(self, *avoid: str) -> Route:
        sequence = SequenceState(
            worker_pb2.Work(prompt=[1] * 40, sampling=sampling_pb2.SamplingParams(max_tokens=8)),
            Waterfall(0.0),
        )
        route = self.selector.route(sequence, set(avoid))
        assert route is not None
        return route

    @contextmanager
    def routed(self) -> Iterator[Route]:
        """A route whose claim is released in the end."""
        route = self.route()
        yield route
        if route.claim is not None:
            route.claim.end()

    def seen(self, found: FakeSession) -> WorkerView:
        """The worker, as the policy sees it now."""
        with self.routed():
            (view,) = [worker for worker in self.policy.view.workers if worker.id == found.key]
        return view

    def replace(self, before: FakeSession, after: FakeSession) -> None:
        before.alive = False
        self.workers.all[self.workers.all.index(before)] = after


def test_kv_of_an_attempt_that_failed_is_pulled_and_other_kv_only_if_configured() -> None:
    served = Served()
    for found in (served.p, served.d):
        found.info.shares_prefixes = True
    served.d.load.cached.stored(block_hashes([1] * 32, 16))
    served.route().claim.end()
    assert not served.policy.request.stored
    served.route("another").claim.end()
    assert served.policy.request.stored == {served.p.key: 0, served.d.key: 32}


def decoding(found: FakeSession) -> Task:
    task = found.load.begin(TaskPhase.INCOMING, 40, cached=0, arrived_at=0.0, now=0.0)
    task.arrived(41)
    return task


def test_room_on_the_decode_worker_is_reserved_until_it_is_picked() -> None:
    served = Served()
    route = served.route()
    assert not route.is_local
    assert route.pick(ROLE_PREFILL) is served.p
    assert served.d.load.room().promised == 1
    assert route.pick(ROLE_DECODE) is served.d
    assert served.d.load.room().promised == 0


def test_links_have_the_bandwidth_measured_by_handoffs_and_the_link_check() -> None:
    served = Served()
    sessions: Any = {ROLE_PREFILL: served.p, ROLE_DECODE: served.d}
    p, d = served.p.key, served.d.key
    served.route()
    assert served.policy.view.link_between(p, d).bytes_per_s == 10e9
    served.selector.probe(sessions.__getitem__).on_transfer(p, d, 400_000_000, 0.01)
    served.route().on_transfer(p, d, 1000, 1.0)
    served.route()
    after = served.policy.view
    assert after.link_between(p, d).bytes_per_s == pytest.approx(40e9), "little KV says nothing"
    assert after.link_between(d, p).bytes_per_s == pytest.approx(40e9), "unseen: as the others"


def test_a_worker_that_changes_its_role_is_preferred_for_that_at_once() -> None:
    served = Served()
    served.route()
    served.p.role = ROLE_DECODE
    served.route()
    assert {worker.prefers for worker in served.policy.view.workers} == {Preference.DECODE}


def test_a_handoff_waits_for_pages_in_one_direction_only() -> None:
    served = Served()
    assert served.route().may_wait
    served.p.role, served.d.role = ROLE_DECODE, ROLE_PREFILL
    assert served.route().may_wait, "the order outlives a change of roles"
    served.replace(served.p, session("p", ROLE_DECODE))
    served.replace(served.d, session("d", ROLE_PREFILL))
    assert not served.route().may_wait


@pytest.mark.parametrize("failed", ["p", "d"])
def test_a_retry_is_placed_by_the_policy_on_one_worker_on_which_it_did_not_fail(failed: str) -> None:
    served = Served(AdaptivePlacement(Targets(0.5, 0.015)))
    for _ in range(3):
        route = served.route(failed)
        assert route.is_local
        assert route.pick(ROLE_DECODE) is (served.d if failed == "p" else served.p)
        assert route.why.startswith("adaptive: TTFT")


def test_a_retry_that_failed_everywhere_may_run_anywhere() -> None:
    served = Served(AdaptivePlacement(Targets(0.5, 0.015)))
    assert served.route("p", "d").is_local


def test_losing_the_decode_worker_before_it_is_picked_fails_the_attempt() -> None:
    served = Served()
    route = served.route()
    served.d.alive = False
    with pytest.raises(AttemptFailed):
        route.pick(ROLE_DECODE)


def test_load_of_a_session_that_broke_is_not_that_of_the_next_with_the_same_worker() -> None:
    """Also if the same process answers again, and clients that read slowly end their attempts later."""
    served = Served()
    streams = [decoding(served.d) for _ in range(20)]
    assert served.seen(served.d).decodes == 20
    again = session("d", ROLE_DECODE)
    served.replace(served.d, again)
    assert served.seen(again).decodes == 0
    for task in streams:
        task.produced(1)
        task.end()
    view = served.seen(again)
    assert (view.decodes, view.context_tokens, view.requests) == (0, 0, 0)


def test_a_worker_that_was_late_for_a_moment_keeps_its_requests_in_the_view() -> None:
    served = Served()
    running = decoding(served.d)
    assert served.seen(served.d).decodes == 1
    served.d.liveness = Liveness.LATE
    assert served.seen(served.d).health is Health.LATE
    served.d.liveness = Liveness.GOOD
    assert served.seen(served.d).decodes == 1
    running.end()
    assert served.seen(served.d).decodes == 0


@pytest.mark.parametrize(("chunk", "largest"), [(256, 256), (0, 512)])
def test_prompts_are_predicted_with_the_worker_s_chunk_size_or_whole(chunk: int, largest: int) -> None:
    served = Served()
    served.replace(served.p, session("p", ROLE_PREFILL, chunk))
    served.route()
    prefill = next(worker for worker in served.policy.view.workers if worker.id.startswith("p"))
    assert prefill.chunk_tokens == largest


def test_only_completed_answers_tell_how_long_answers_are() -> None:
    served = Served()
    requests: list[RequestView] = []
    placed = served.policy.place
    served.policy.place = lambda request, view: (requests.append(request), placed(request, view))[1]
    sequence = SequenceState(
        worker_pb2.Work(prompt=[1] * 40, sampling=sampling_pb2.SamplingParams(max_tokens=1000)),
        Waterfall(0.0),
    )
    served.selector.route(sequence, set())
    for _ in range(500):
        served.selector.completed(40)
    served.selector.route(sequence, set())
    assert [request.expected_output for request in requests] == [256, 40]


def test_a_request_goes_only_to_workers_that_it_fits_outside_of_quarantine() -> None:
    served = Served(AdaptivePlacement(Targets(0.5, 0.015)))
    quarantine = worker_pb2.Load(total_pages=PAGES, free_pages=2, quarantined_pages=98)
    served.d.load.report(quarantine, 0)
    for _ in range(3):
        assert served.route().pick(ROLE_DECODE) is served.p
    served.p.load.report(quarantine, 0)
    for refused in (served.route, lambda: served.selector.check(40)):
        with pytest.raises(Unavailable, match="quarantine"):
            refused()
    served.selector.check(32)
