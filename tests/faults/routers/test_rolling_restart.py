"""An operator restarts workers one by one, under load: no client is told of it."""

from __future__ import annotations

import time

import pytest

from tests.faults.support.bounds import bounded
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

CLIENTS = 8


@bounded("rounds", here=1, soak=30)
async def test_decode_workers_are_restarted_one_by_one_and_no_request_fails(
    service: Service, answers: Answers, rounds: int
) -> None:
    for round_ in range(rounds):
        before = {process.pid for process in service.workers("decode")}
        async with Load(service.clients(CLIENTS), answers) as load:
            await load.everybody_streams()
            began = time.monotonic()
            said = await service.operate("restart", "decode-0", "decode-1", "--timeout", "1")
            await load.everybody_streams(since=time.monotonic())
        await service.all_pages_back()
        assert not load.refusals
        assert not before & {process.pid for process in service.workers("decode")}
        print(
            f"\nrolling restart, round {round_}: {time.monotonic() - began:.1f} s, {len(load.stories)} "
            f"answers, none refused; {' '.join(said.split())}",
            end="",
        )
