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
                await new.says("decode-0 is ready again", 0, 90.0)
                between = await worker_pids(new)
                async with asyncio.timeout(30):  # on busy cores a worker may be unreachable for a while
                    while between.keys() < {"prefill-0", "decode-0"}:
                        await asyncio.sleep(0.5)
                        between = await worker_pids(new)
                assert between.keys() == {"prefill-0", "decode-0"}, "the old router has lost its last worker"
                assert not between.items() & before.items()
                assert await worker_pids(old) == {"decode-1": before["decode-1"]}
                await through_old.everybody_streams(since=time.monotonic())
                async with Load(new.clients(CLIENTS), answers) as through_new:
                    await through_new.everybody_streams()
                    await through_old.ask_no_more()
                    old.running.process.send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(old.running.process.wait, 90) == 0
                    await new.says("decode-1 is ready again", 0, 90.0)
                    await through_new.everybody_streams(since=time.monotonic())
                assert not through_new.refusals
                after = await worker_pids(new)
                assert between.items() < after.items()
                assert after["decode-1"] != before["decode-1"]
                await new.all_pages_back()
        assert not through_old.refusals
