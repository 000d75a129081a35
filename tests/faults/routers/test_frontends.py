"""Front ends of one command share ports and workers; one that is killed takes its own streams only."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

FRONTENDS = 2
CLIENTS = 12
READY_S = 60.0


def front_ends(service: Service) -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process(service.running.process.pid).children()
        if "front-end" in child.cmdline()
    ]


async def ready(service: Service, times: int) -> None:
    """Until front ends have become ready so many times."""
    deadline = time.monotonic() + READY_S
    while len(re.findall(r"is ready after", service.running.text())) < times:
        assert time.monotonic() < deadline, service.running.text()
        await asyncio.sleep(0.1)


async def test_a_killed_front_end_ends_its_own_streams_and_comes_back(
    small: SmallModel, answers: Answers, tmp_path: Path
) -> None:
    with serve(small, tmp_path / "log", "--frontends", str(FRONTENDS), decode_workers=1) as service:
        await ready(service, FRONTENDS)
        workers = [child.pid for child in service.workers("prefill") + service.workers("decode")]
        assert len(workers) == 2, "two routers have started one set of workers"
        async with Load(service.clients(CLIENTS, router_may_die=True), answers) as load:
            await load.everybody_streams()
            front_ends(service)[0].kill()
            killed_at = time.monotonic()
            await load.everybody_streams(since=killed_at)
            await ready(service, FRONTENDS + 1)
        cut = [story for story in load.stories if story.refusal is not None and story.times]
        kept = [s for s in load.stories if s.times and s.times[0] < killed_at < s.times[-1]]
        assert cut, "no client was connected to the killed front end"
        assert kept, "no stream of the other front end went on"
        assert [c.pid for c in service.workers("prefill") + service.workers("decode")] == workers
        await service.all_pages_back()
        service.running.look()
        service.running.process.terminate()
        assert service.running.process.wait(60) == 0
        assert not service.running.survivors(within_s=5.0)


async def test_sighup_lets_every_front_end_read_the_keys_again(
    small: SmallModel, answers: Answers, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("0123456789abcdef\n")
    keys.chmod(0o600)
    flags = ("--frontends", str(FRONTENDS), "--api-key-file", str(keys))
    with serve(small, tmp_path / "log", *flags, mode="mixed", prefill_workers=0, decode_workers=1) as service:
        await ready(service, FRONTENDS)
        before = [process.pid for process in front_ends(service)]
        service.running.process.send_signal(signal.SIGHUP)  # without a change, which each would find itself
        async with asyncio.timeout(READY_S):
            while service.running.text().count(f"read --api-key-file {keys} again") < FRONTENDS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert [process.pid for process in front_ends(service)] == before
