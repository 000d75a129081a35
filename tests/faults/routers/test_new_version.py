"""Baton is updated in place, router by router: the new one restarts the workers that the other can spare."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from pathlib import Path

import pytest

from common import version
from tests.faults.support.joined import joined, worker_pids
from tests.faults.support.load import Answers, Load
from tests.faults.support.service import Service
from tests.faults.support.small_model import SmallModel
from tests.running_ray import running_ray

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]

ROOT = Path(version.__file__).parents[1]
NOT_INSTALLED = {"benchmarks", "scripts", "tests"}
CLIENTS = 6


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, which every process that is started runs."""
    folder = tmp_path / "code"
    for package in ROOT.iterdir():
        if (package / "__init__.py").exists() and package.name not in NOT_INSTALLED:
            shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{ROOT}")
    monkeypatch.chdir(folder)  # which Ray adds to the paths of workers
    return folder


async def two_workers(router: Service) -> dict[str, int]:
    """With the new code, in any order."""
    async with asyncio.timeout(120):  # on busy cores a worker may be unreachable for a while
        while len(found := await worker_pids(router)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    return found


async def test_a_new_version_replaces_the_old_one_without_a_failed_request(
    small: SmallModel, answers: Answers, installed: Path, tmp_path: Path
) -> None:
    with (
        running_ray(num_cpus=3) as running,
        joined(small, running.address, tmp_path / "old", decode_workers=2) as old,
    ):
        before = await worker_pids(old)
        with (installed / "common" / "version.py").open("a") as file:
            file.write("# another version\n")
        async with Load(old.clients(CLIENTS), answers) as through_old:
            await through_old.everybody_streams()
            with joined(small, running.address, tmp_path / "new", decode_workers=2) as new:
                between = await two_workers(new)
                (last,) = before.keys() - between.keys()
                assert not between.items() & before.items()
                assert await worker_pids(old) == {last: before[last]}, "it has lost its last worker"
                await through_old.everybody_streams(since=time.monotonic())
                async with Load(new.clients(CLIENTS), answers) as through_new:
                    await through_new.everybody_streams()
                    await through_old.ask_no_more()
                    old.running.process.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(old.running.process.wait, 90) == 0
                    await new.says(f"{last} is ready again", 0, 90.0)
                    await through_new.everybody_streams(since=time.monotonic())
                assert not through_new.refusals
                after = await worker_pids(new)
                assert between.items() < after.items()
                assert after[last] != before[last]
                await new.all_pages_back()
        assert not through_old.refusals
