"""The number of compute threads follows what other processes leave."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from common.cpu_times import CpuTimes, usable_cores
from engine.device import compute_threads
from engine.device.compute_threads import ComputeThreads, ThreadChoice


class Cores:
    """Counters of a machine on which this process and others compute."""

    def __init__(self, cores: int) -> None:
        self.now = CpuTimes(at=0.0, cores=cores, busy=0.0, own=0.0)

    def run(self, seconds: float, *, others: float, own: float = 1.0) -> CpuTimes:
        before = self.now
        self.now = CpuTimes(
            before.at + seconds,
            before.cores,
            before.busy + (others + own) * seconds,
            before.own + own * seconds,
        )
        return self.now


def test_beside_busy_processes_one_thread_is_left_at_once() -> None:
    cores = Cores(2)
    choice = ThreadChoice(2, cores.now)
    assert choice.at(cores.run(0.25, others=0.05, own=1.9)) == 2
    assert choice.at(cores.run(0.25, others=0.7, own=1.3)) == 1
    assert choice.at(cores.run(0.25, others=1.0)) == 1


def test_more_busy_processes_than_cores_leave_one_thread() -> None:
    cores = Cores(4)
    choice = ThreadChoice(4, cores.now)
    assert choice.at(cores.run(1.0, others=4.0, own=0.0)) == 1


def test_only_what_others_use_is_given_up() -> None:
    cores = Cores(16)
    choice = ThreadChoice(16, cores.now)
    assert choice.at(cores.run(0.25, others=2.0, own=14.0)) == 14
    half = Cores(16)
    assert ThreadChoice(8, half.now).at(half.run(0.25, others=8.0, own=8.0)) == 8
    assert ThreadChoice(8, half.now).at(half.run(0.25, others=10.0, own=6.0)) == 6


def test_threads_return_after_a_calm_period_only() -> None:
    cores = Cores(2)
    choice = ThreadChoice(2, cores.now)
    assert choice.at(cores.run(0.25, others=1.0)) == 1
    counts = [choice.at(cores.run(0.25, others=0.02)) for _ in range(8)]
    assert counts == [1] * 7 + [2]


def test_a_moment_of_work_elsewhere_starts_the_calm_period_again() -> None:
    cores = Cores(2)
    choice = ThreadChoice(2, cores.now)
    choice.at(cores.run(0.25, others=1.0))
    for _ in range(10):
        assert choice.at(cores.run(1.5, others=0.02)) == 1
        assert choice.at(cores.run(0.25, others=0.2)) == 1


def test_after_a_long_idle_time_one_more_look_decides() -> None:
    for others, threads in ((0.01, 2), (1.0, 1)):
        cores = Cores(2)
        choice = ThreadChoice(2, cores.now)
        choice.at(cores.run(0.25, others=1.0))
        assert choice.at(cores.run(15.0, others=0.01, own=0.0)) == 1
        assert choice.at(cores.run(0.1, others=others)) == threads


def test_the_first_step_after_an_idle_time_is_followed_by_a_look_soon(two_threads: None) -> None:
    cores = Cores(2)
    looks = []
    threads = ComputeThreads(lambda: looks.append(cores.now.at) or cores.now, lambda: cores.now.at)
    for seconds in (15.0, 0.05, 0.05, 0.1, 0.15):
        cores.run(seconds, others=0.0)
        threads.adapt()
    assert looks == pytest.approx([0.0, 15.0, 15.1, 15.35])


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compute_threads, "usable_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_torch_gets_the_number_and_the_log_says_why(
    two_threads: None, caplog: pytest.LogCaptureFixture
) -> None:
    cores = Cores(2)
    threads = ComputeThreads(lambda: cores.now, lambda: cores.now.at)
    with caplog.at_level(logging.INFO):
        cores.run(0.1, others=1.0)
        threads.adapt()
        assert torch.get_num_threads() == 2  # too early to tell
        cores.run(0.2, others=1.0)
        threads.adapt()
    assert torch.get_num_threads() == threads.threads == 1
    assert caplog.messages == ["computing with 1 threads instead of 2: other processes use 1.0 cores"]
    for others in (0.0, 1.0) * 5:
        cores.run(2.5, others=others)
        threads.adapt()
    assert len(caplog.messages) == 1, "at most one line a minute"


def test_a_process_with_one_thread_looks_at_nothing() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        threads = ComputeThreads(lambda: pytest.fail("looked"))
        threads.adapt()
    finally:
        torch.set_num_threads(before)
    assert threads.threads == 1


def test_without_counters_the_number_stays(two_threads: None) -> None:
    threads = ComputeThreads(lambda: None)
    threads.adapt()
    assert threads.threads == torch.get_num_threads() == 2


def test_there_are_at_most_as_many_threads_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(usable_cores() + 3)
    try:
        assert ComputeThreads().most == torch.get_num_threads() == usable_cores()
    finally:
        torch.set_num_threads(before)
