"""CPU time of this process and of others, from the operating system's counters."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from common.cpu_times import CpuTimes, busy_of, cores_of_quota, usable_cores

STAT = """\
cpu  600 0 100 1000 50 10 20 30 400 0
cpu0 100 5 10 700 20 1 2 3 90 0
cpu1 500 0 90 300 30 9 18 27 310 0
cpu2 0 0 0 5000 0 0 0 0 0 0
intr 1 2 3
""".splitlines()


def test_busy_is_everything_but_idle_and_iowait_and_guests_are_not_counted_twice() -> None:
    seconds = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_of(STAT, {0}) == (1, pytest.approx(121 * seconds))
    assert busy_of(STAT, {0, 1, 7}) == (2, pytest.approx(765 * seconds))


def test_counters_that_never_move_are_no_counters() -> None:
    assert busy_of(["cpu  0 0 0 0 0 0 0 0 0 0", "cpu0 0 0 0 0 0 0 0 0 0 0"], {0}) is None


def test_others_are_what_is_busy_without_this_process() -> None:
    before = CpuTimes(at=10.0, cores=4, busy=100.0, own=50.0)
    assert CpuTimes(12.0, 4, 105.0, 52.0).others_since(before) == pytest.approx(1.5)
    assert CpuTimes(12.0, 4, 100.0, 52.0).others_since(before) == 0.0
    assert CpuTimes(12.0, 4, 200.0, 52.0).others_since(before) == 4.0


def test_a_process_that_computes_is_seen_as_another_and_one_own_work_is_not() -> None:
    before = CpuTimes.now()
    if before is None:
        pytest.skip("this system does not tell CPU times")
    ends = time.process_time() + 0.1
    while time.process_time() < ends:
        pass
    after = CpuTimes.now()
    assert after is not None
    assert after.own - before.own > 0.05
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    later = CpuTimes.now()
    assert later is not None
    assert later.own - after.own > 0.02  # an ended child is this process' own


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("800000 100000\n", 8.0)]
)
def test_a_containers_quota_is_read(text: str, cores: float | None) -> None:
    assert cores_of_quota(text) == cores


def test_at_least_one_core_is_usable() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
