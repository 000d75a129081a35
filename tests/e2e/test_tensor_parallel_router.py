"""The whole service with a worker of two ranks: real Ray, one actor a rank, and what happens when one dies.

One rank prefills, so every answer also shows that pages find their way from one rank to two.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest

from tests.e2e.router_process import STARTUP_S, RouterProcess, SharedRouter
from tests.e2e.streaming import Streaming
from tests.faults.support.small_model import SmallModel, save_small_model

pytestmark = pytest.mark.thorough

FLAGS = ("--mode", "disagg", "--decode-tensor-parallel-size", "2", "--served-model-name", "smollm2")
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallModel:
    return save_small_model(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def shared(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedRouter]:
    with SharedRouter(tmp_path_factory.mktemp("ranks"), *FLAGS, model=str(small.folder)) as shared:
        yield shared


@pytest.fixture
def service(shared: SharedRouter) -> RouterProcess:
    return shared.get()


def answer(service: RouterProcess, small: SmallModel, seed: int) -> None:
    question = small.question(seed, length=300, max_tokens=MAX_TOKENS)
    response = service.complete(list(question.prompt), MAX_TOKENS, ignore_eos=True)
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


def test_sigterm_lets_a_running_answer_finish_and_leaves_no_rank(
    service: RouterProcess, small: SmallModel
) -> None:
    question = small.question(3, length=300, max_tokens=400)
    stream = Streaming(service, list(question.prompt), question.max_tokens, ignore_eos=True)
    stream.wait_for_chunks(3)
    assert len(ranks(service)) == 2
    service.process.send_signal(signal.SIGTERM)
    assert stream.finish() == small.text(small.answer(question))
    assert service.process.wait(30) == 0
    assert not service.survivors(within_s=5.0)
