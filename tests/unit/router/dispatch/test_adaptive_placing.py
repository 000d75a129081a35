"""Routes made from placements."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from router.dispatch.failures import AttemptFailed
from router.dispatch.routing.adaptive import AdaptivePlacing
from router.dispatch.sequence import Sequence
from router.dispatch.waterfall import Waterfall
from router.placement import ClusterView, Placement, Preference, RequestView, Why
from router.workers.cached_prefixes import CachedPrefixes
from router.workers.load import WorkerLoad
from rpc.baton.v1 import sampling_pb2, worker_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL


class HandsOver:
    """Places every request on (prefill, decode) workers by their preference; records the views it gets."""

    def place(self, request: RequestView, view: ClusterView) -> Placement:
        self.view = view
        by_name = {worker.id.partition("@")[0]: worker.id for worker in view.workers}
        return Placement(by_name["p"], by_name["d"], Why("test"))


def session(name: str, role: worker_pb2.Role, epoch: int = 1) -> Any:
    peer = worker_pb2.Peer(page_bytes=1 << 20)
    info = worker_pb2.WorkerInfo(
        worker_id=name, role=role, epoch=epoch, page_size=16, num_pages=100, max_model_len=512, peer=peer
    )
    return SimpleNamespace(
        worker_id=name,
        role=role,
        info=info,
        load=WorkerLoad(16, 8),
        cached=CachedPrefixes(16),
        alive=True,
        on_step=None,
    )


def sequence() -> Sequence:
    return Sequence([1] * 40, sampling_pb2.SamplingParams(max_tokens=8), Waterfall(0.0))


class Served:
    def __init__(self) -> None:
        self.p, self.d = session("p", ROLE_PREFILL), session("d", ROLE_DECODE)
        self.policy = HandsOver()
        self.choice = Mock()
        self.choice.preferred.side_effect = lambda *_: [self.p, self.d]
        registry = Mock()
        registry.complaints.return_value = []
        self.placing = AdaptivePlacing(registry, self.choice, lambda _: self.policy, clock=lambda: 1.0)

    def route(self, avoid: frozenset[str] = frozenset()) -> Any:
        return self.placing.route(sequence(), avoid)


def test_room_on_the_decode_worker_is_reserved_until_it_is_picked() -> None:
    served = Served()
    route = served.route()
    assert not route.is_local
    assert (route.pick(ROLE_PREFILL), route.pick(ROLE_DECODE)) == (served.p, served.d)
    assert served.d.load.view().promised == 1
    route.claim.release()
    assert served.d.load.view().promised == 0


def test_a_decode_worker_without_room_for_the_kv_gets_the_whole_request() -> None:
    served = Served()
    served.choice.has_room.return_value = False
    route = served.route()
    assert route.is_local
    assert route.pick(ROLE_DECODE) is served.d
    assert "no room" in route.why


def test_links_have_the_bandwidth_measured_by_handoffs_and_the_link_check() -> None:
    served = Served()
    sessions = {ROLE_PREFILL: served.p, ROLE_DECODE: served.d}
    served.choice.ready_workers.side_effect = lambda: [served.p, served.d]
    served.route()
    assert served.policy.view.link_between("p@1", "d@1").bytes_per_s == 10e9
    served.placing.probe(sessions.__getitem__).tracker.handed_off(400_000_000, 0.01)
    served.route().tracker.handed_off(1000, 1.0)
    served.route()
    after = served.policy.view
    assert after.link_between("p@1", "d@1").bytes_per_s == pytest.approx(40e9), "little KV says nothing"
    assert after.link_between("d@1", "p@1").bytes_per_s == pytest.approx(40e9), "unseen: as the others"


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
    served.p, served.d = session("p", ROLE_DECODE), session("d", ROLE_PREFILL)
    assert not served.route().may_wait


def test_a_retry_runs_on_one_worker_on_which_it_did_not_fail() -> None:
    served = Served()
    served.choice.pick_any.return_value = served.p
    route = served.route(avoid=frozenset({"d"}))
    assert route.is_local
    assert route.pick(ROLE_DECODE) is served.p
    served.choice.pick_any.assert_called_once_with(40, {"d"})


def test_losing_the_decode_worker_before_it_is_picked_fails_the_attempt() -> None:
    served = Served()
    route = served.route()
    served.d.alive = False
    with pytest.raises(AttemptFailed):
        route.pick(ROLE_DECODE)


def test_a_restarted_worker_inherits_no_measurements() -> None:
    served = Served()
    old = served.route()
    served.d = session("d", ROLE_DECODE, epoch=2)
    served.route()
    (fresh,) = [worker for worker in served.policy.view.workers if worker.id.startswith("d")]
    assert (fresh.decodes, fresh.incoming) == (0, 0)
    old.tracker.tokens(1)
    old.tracker.arrived()
    old.tracker.ended()
    served.route()
    (fresh,) = [worker for worker in served.policy.view.workers if worker.id.startswith("d")]
    assert (fresh.decodes, fresh.incoming, fresh.context_tokens) == (0, 1, 0)


def test_a_worker_that_was_late_for_a_moment_keeps_its_requests_in_the_view() -> None:
    served = Served()
    running = served.route()
    running.tracker.arrived()
    running.tracker.tokens(1)
    served.choice.preferred.side_effect = lambda *_: [served.p]
    with pytest.raises(KeyError):
        served.route()  # by this policy, which looks for it
    served.choice.preferred.side_effect = lambda *_: [served.p, served.d]

    def decodes() -> int:
        served.route().tracker.ended()
        (worker,) = [worker for worker in served.policy.view.workers if worker.id.startswith("d")]
        return worker.decodes

    assert decodes() == 1
    running.tracker.ended()
    assert decodes() == 0


def test_a_worker_that_is_late_is_not_in_the_view() -> None:
    served = Served()
    served.route()
    served.choice.preferred.side_effect = lambda *_: [served.p]
    with pytest.raises(KeyError, match="d"):
        served.route()  # by this policy, which looks for it
    assert [worker.id for worker in served.policy.view.workers] == ["p@1"]
