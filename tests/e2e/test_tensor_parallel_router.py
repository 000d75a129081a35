"""The whole service with workers of two ranks: real Ray, one actor a rank, and what happens when one dies."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.router_process import STARTUP_S, RouterProcess, router
from tests.faults.small_model import SmallModel, save_small_model

FLAGS = ("--mode", "mixed", "--tensor-parallel-size", "2", "--served-model-name", "smollm2")
DISAGG = ("--mode", "disagg", "--decode-tensor-parallel-size", "2", "--served-model-name", "smollm2")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture
def service(small: SmallModel, tmp_path: Path) -> Iterator[RouterProcess]:
    with router(tmp_path / "log", *FLAGS, model=str(small.folder)) as running:
        running.wait_until_ready()
        yield running


def answer(service: RouterProcess, small: SmallModel, seed: int) -> None:
    question = small.question(seed, length=300, max_tokens=24)
    response = service.complete(list(question.prompt), 24, ignore_eos=True)
    assert response["choices"][0]["text"] == small.text(small.answer(question))


def ranks(service: RouterProcess) -> set[int]:
    """Process ids of a worker's ranks. A process may end while it is looked at."""
    with suppress(psutil.NoSuchProcess):
        return {process.pid for role in ("RankActor", "DecodeWorker") for process in service.workers(role)}
    return set()


@pytest.mark.parametrize("victim", ["RankActor", "DecodeWorker"])
def test_answers_are_transformers_own_also_after_a_rank_was_killed(
    service: RouterProcess, small: SmallModel, victim: str
) -> None:
    answer(service, small, seed=1)
    before = ranks(service)
    (rank,) = service.workers(victim)
    rank.kill()
    deadline = time.monotonic() + STARTUP_S
    while len(before | ranks(service)) < 4:  # both are to be new
        assert time.monotonic() < deadline, service.text()
        time.sleep(0.1)
    service.wait_until_all_workers_are_back()
    answer(service, small, seed=2)
    assert not before & ranks(service)
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0
    assert not service.survivors(within_s=2.0)


def test_one_rank_prefills_for_two(small: SmallModel, tmp_path: Path) -> None:
    with router(tmp_path / "log", *DISAGG, model=str(small.folder)) as service:
        service.wait_until_ready()
        answer(service, small, seed=3)
