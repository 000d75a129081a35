"""The number of workers that a router finds, and the one in its own settings."""

from __future__ import annotations

from collections.abc import Sequence

from router.cluster.fleet import WantedWorkers
from router.cluster.record import ClusterRecord
from tests.unit.router.cluster.key_values import KeyValues
from worker.config import WorkerRole

DECODE = WorkerRole.DECODE


def agreed(record: ClusterRecord, number: int, *alive: str) -> Sequence[str]:
    """The workers to which a router with this number in its settings connects when it starts."""
    return record.agree({DECODE: number}, alive, worth=alive.count)


def test_a_router_with_the_same_settings_adopts_the_number_that_was_scaled_to() -> None:
    record = ClusterRecord(KeyValues(), "a")
    assert agreed(record, 1) == ["decode-0"]
    record.keep_wanted(DECODE, WantedWorkers.first(DECODE, 1).resized(DECODE, 3))
    assert agreed(record, 1) == ["decode-0", "decode-1", "decode-2"]


def test_another_number_in_the_settings_is_a_change_and_counts_once() -> None:
    record = ClusterRecord(KeyValues(), "a")
    agreed(record, 1)
    assert agreed(record, 2) == ["decode-0", "decode-1"]
    record.keep_wanted(DECODE, WantedWorkers(("decode-0", "decode-1"), 2).resized(DECODE, 1))
    assert agreed(record, 2) == ["decode-0"]


def test_a_smaller_number_keeps_the_workers_that_are_worth_most() -> None:
    record = ClusterRecord(KeyValues(), "a")
    agreed(record, 2)
    assert agreed(record, 1, "decode-1") == ["decode-1"]
    assert not record.is_wanted("decode-0")


def test_workers_that_are_not_wanted_are_known_until_they_have_ended() -> None:
    record = ClusterRecord(KeyValues(), "a")
    assert agreed(record, 1, "decode-0", "decode-3") == ["decode-0", "decode-3"]
    assert not record.is_wanted("decode-3")


def test_a_cluster_that_was_scaled_to_zero_gets_one_worker_that_can_be_asked() -> None:
    record = ClusterRecord(KeyValues(), "a")
    agreed(record, 1)
    record.keep_wanted(DECODE, WantedWorkers((), 1))
    assert agreed(record, 1) == ["decode-0"]
    assert record.is_wanted("decode-0")
