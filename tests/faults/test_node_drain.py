"""A node that ends in an orderly way, as a Pod does, first loses its requests to workers of other nodes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.router_process import ENDS_WITH_ITS_PARENT
from tests.faults.support.joined import joined
from tests.faults.support.load import Answers, Load
from tests.faults.support.small_model import SmallModel
from tests.running_ray import running_ray

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

BIN = Path(sys.executable).parent


@contextmanager
def second_node(address: str) -> Iterator[None]:
    """A node that joins that Ray, with room for one worker."""
    command = [BIN / "ray", "start", "--address", address, "--num-cpus=1", "--disable-usage-stats", "--block"]
    process = subprocess.Popen([*ENDS_WITH_ITS_PARENT, *command], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def node_of(worker: str, address: str) -> str:
    """Ray's id of it, asked by a process that has the token."""
    asks = (
        "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False);"
        "print('node', ray.get(ray.get_actor(sys.argv[2], 'baton.baton').node.remote()))"
    )
    command = [sys.executable, "-c", asks, address, worker]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return said.rpartition("node ")[2].strip()


async def command(*words: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        BIN / "router", *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode, said.decode()


async def counted(url: str, name: str) -> float:
    """The sum over all labels."""
    async with httpx.AsyncClient() as http:
        lines = (await http.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


async def test_a_node_that_is_drained_ends_without_a_failed_or_repeated_attempt(
    small: SmallModel, tmp_path: Path
) -> None:
    questions = [small.question(seed, length=300, max_tokens=400) for seed in range(3)]
    answers = Answers(small, {question: small.answer(question) for question in questions})
    joins = ("--mode", "adaptive", "--placement", "strict-spread")
    with (
        running_ray(num_cpus=1) as running,
        second_node(running.address),
        joined(small, running.address, tmp_path / "log", *joins) as service,
    ):
        node = node_of("decode-0", running.address)
        async with Load(service.clients(8), answers) as load:
            await load.everybody_streams()
            code, said = await command(
                "drain-node", "--ray-address", running.address, "--node", node, "--timeout", "60"
            )
            assert (code, said.count("no request is left")) == (0, 1), said
            await load.everybody_streams(since=time.monotonic())
        assert not load.refusals
        assert not await counted(service.url, "baton_request_retries_total")
        assert await counted(service.url, "baton_moved_answers_total")
        await service.all_pages_back()
        await service.operate("stop", "--workers")
        service.running.process.wait(60)
