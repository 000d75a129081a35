"""Models whose layers have windows or recurrent states, served as users start them: answers move off a worker
that restarts, and a worker is killed; clients compare every token with transformers'."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tests.faults.support.clients import GrpcClient
from tests.faults.support.load import Answers, Load, learn
from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import save_small_model
from tests.integration.models.kinds_of_kv import states, windows

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

CLIENTS = 4
WINDOW = 48
"""Prompts are several times as long."""


@pytest.fixture(
    scope="module",
    params=[(partial(windows, sliding_window=WINDOW), "disagg"), (states, "adaptive")],
    ids=["windows", "states"],
)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Answers]]:
    family, mode = request.param
    folder = tmp_path_factory.mktemp("model")
    small = save_small_model(folder, family)
    with serve(small, folder / "log", mode=mode) as service:
        # Each begins as the one before it, so that each finds a prefix in the cache.
        beginning = small.question(0, length=160, max_tokens=0).prompt
        ends = [small.question(seed, length=90 + 40 * seed, max_tokens=300) for seed in range(CLIENTS)]
        asked = [replace(question, prompt=beginning + question.prompt) for question in ends]
        yield service, asyncio.run(learn(small, GrpcClient(service.target), asked))


async def test_answers_move_and_survive_a_killed_worker(served: tuple[Service, Answers]) -> None:
    service, answers = served
    async with Load(service.clients(CLIENTS), answers) as load:
        await load.everybody_streams()
        await service.restart_busiest(timeout_s=5)
        await load.everybody_streams(since=time.monotonic())
        service.workers("decode")[-1].kill()
        await load.everybody_streams(since=time.monotonic())
    assert not load.refusals
    await service.all_workers_up()
    await service.all_pages_back()
    assert await service.total("baton_cache_hit_tokens_total") > 160
