"""What the routers of a cluster share."""

from __future__ import annotations

from router.cluster.fleet import WantedWorkers
from router.cluster.record import ClusterRecord, FirstGroup
from router.dispatch.workers.fencing import Incarnation
from rpc.tls import Identity
from tests.unit.router.cluster.key_values import KeyValues
from worker.config import WorkerRole

GROUP = FirstGroup("group", "shape", ("decode-0", "decode-1"))


def test_every_router_of_a_cluster_has_the_identity_of_the_first_one() -> None:
    store = KeyValues()
    first = ClusterRecord(store, "a").identity()
    assert ClusterRecord(store, "a").identity() == first
    assert ClusterRecord(store, "b").identity() != first


def test_an_identity_is_the_same_after_it_was_stored() -> None:
    identity = Identity.generate()
    assert Identity.from_pem(identity.pem) == identity


def test_a_drained_worker_stays_so_for_every_router_until_one_starts_it() -> None:
    store = KeyValues()
    first, second = ClusterRecord(store, "a"), ClusterRecord(store, "a")
    first.keep_stopped("decode-0", True)
    assert second.is_stopped("decode-0")
    assert not second.is_stopped("decode-1")
    second.keep_stopped("decode-0", False)
    assert not first.is_stopped("decode-0")


def test_the_last_process_of_each_worker_is_known_to_the_next_router() -> None:
    record = ClusterRecord(KeyValues(), "a")
    for epoch in (1, 1 << 63):
        record.keep_incarnation(Incarnation("decode-0", epoch, "node"))
    assert record.incarnations(["decode-0", "decode-1"]) == [Incarnation("decode-0", 1 << 63, "node")]


def test_the_end_of_the_workers_leaves_nothing_and_no_other_cluster_is_touched() -> None:
    store = KeyValues()
    ended, other = ClusterRecord(store, "a"), ClusterRecord(store, "b")
    for record in (ended, other):
        record.identity()
        assert record.first_group(GROUP) == GROUP
        assert record.first_group(FirstGroup("another", "shape", ())) == GROUP
        record.keep_memory("cuda", 1 << 40)
    ended.clear()
    assert (ended.group, ended.memory("cuda")) == (None, None)
    assert (other.group, other.memory("cuda")) == (GROUP, 1 << 40)


def test_every_router_knows_the_workers_that_one_wants() -> None:
    store = KeyValues()
    first, second = ClusterRecord(store, "a"), ClusterRecord(store, "a")
    two = WantedWorkers.first(WorkerRole.DECODE, 2)
    assert first.is_wanted("decode-7"), "nothing is decided yet"
    assert first.first_wanted(WorkerRole.DECODE, two) == two
    assert second.first_wanted(WorkerRole.DECODE, WantedWorkers.first(WorkerRole.DECODE, 3)) == two
    second.keep_wanted(WorkerRole.DECODE, two.resized(WorkerRole.DECODE, 1))
    assert (first.is_wanted("decode-0"), first.is_wanted("decode-1")) == (True, False)
    assert first.wanted(WorkerRole.PREFILL) is None
    first.keep_stopped("decode-0", True)
    first.forget_workers()
    assert second.wanted(WorkerRole.DECODE) is None
    assert not second.is_stopped("decode-0"), "another worker of that name would not start"
