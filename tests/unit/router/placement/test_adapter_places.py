"""How long adapters take to load, and where they are on a worker."""

from __future__ import annotations

from typing import Any

import pytest

from router.dispatch.workers.worker_adapters import WorkerAdapters
from router.placement import AdapterPlace, LoadTimes
from rpc.baton.v1.worker_pb2 import AdapterUse, WorkerInfo

MB = 1_000_000
NO_STUB: Any = None


def known(*uses: AdapterUse, max_loras: int = 2, now: list[float] | None = None) -> WorkerAdapters:
    time = now or [0.0]
    adapters = WorkerAdapters("w", NO_STUB, WorkerInfo(max_loras=max_loras), lambda: time[0])
    adapters.report(uses)
    return adapters


def test_the_time_of_a_load_follows_from_its_bytes_and_from_the_loads_before() -> None:
    times = LoadTimes()
    guess = times.seconds(100 * MB)
    for _ in range(20):
        times.observe(50 * MB, 0.5)
    assert times.seconds(100 * MB) == pytest.approx(1.01)
    assert guess < 0.2
    assert times.seconds(10 * MB) < times.seconds(20 * MB)


def test_an_adapter_is_in_a_slot_in_host_memory_or_has_to_be_loaded() -> None:
    adapters = known(AdapterUse(digest=b"a", on_device=True), AdapterUse(digest=b"b"))
    assert adapters.place(b"a", 100 * MB) == adapters.place(b"b", 100 * MB) == AdapterPlace()
    assert adapters.place(b"c", 100 * MB).load_s == pytest.approx(0.11)
    adapters.brought(b"c")
    assert adapters.place(b"c", 100 * MB) == AdapterPlace()


def test_slots_that_requests_use_are_waited_for_and_idle_ones_are_not() -> None:
    idle, busy = AdapterUse(digest=b"a", on_device=True), AdapterUse(digest=b"b", on_device=True, running=3)
    assert not known(idle, busy).place(b"c", 0).waits_for_slot
    both = known(AdapterUse(digest=b"a", on_device=True, waiting=1), busy)
    assert both.place(b"c", 0).waits_for_slot
    assert both.place(b"b", 0) == AdapterPlace()


def test_a_worker_that_could_not_load_an_adapter_is_not_asked_again_at_once() -> None:
    now = [0.0]
    adapters = known(now=now)
    assert adapters.may_use(b"a")
    adapters.brought(b"a")
    adapters.refused(b"a")
    assert not adapters.may_use(b"a")
    assert not adapters.may_hold(b"a")
    now[0] = 10.0
    assert adapters.may_use(b"a")
