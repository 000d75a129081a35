"""Workers that draft, served as users start them: one is killed while it verifies, and answers move with
drafts in flight. Clients compare every token with what the model says without drafts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.faults.support.clients import GrpcClient
from tests.faults.support.load import Load, learn
from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

CLIENTS = 4
DRAFTED = "baton_drafted_tokens_total"


@pytest.mark.parametrize("mode", ["mixed", "disagg"])
async def test_answers_move_and_survive_a_worker_killed_while_it_verifies(
    small: SmallModel, tmp_path: Path, mode: str
) -> None:
    prefill_workers = int(mode == "disagg")
    drafting = ("--speculative", "ngram", "--speculative-num-draft-tokens", "4")
    log = tmp_path / "log"
    with serve(small, log, *drafting, mode=mode, prefill_workers=prefill_workers) as service:
        asked = [small.question(seed, length=60 + 40 * seed, max_tokens=1500) for seed in range(CLIENTS)]
        answers = await learn(small, GrpcClient(service.target), asked)
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            await drafts(service)
            await service.restart_busiest(timeout_s=0)
            await load.everybody_streams(since=time.monotonic())
            await service.all_workers_up()
            await drafts(service)
            service.workers("decode")[-1].kill()
            await load.everybody_streams(since=time.monotonic())
        assert not load.refusals
        await service.all_workers_up()
        await service.all_pages_back()


async def drafts(service: Service) -> None:
    """Until more tokens have been drafted than before. Raises TimeoutError."""
    before = await service.total(DRAFTED)
    async with asyncio.timeout(60):
        while await service.total(DRAFTED) <= before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
