"""The service as a user starts it, its processes to be killed and stopped, and what its metrics say."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.e2e.router_process import RouterProcess, router
from tests.faults.support.clients import Client, GrpcClient, HttpClient
from tests.faults.support.small_model import SmallModel

_BACK_S = 90.0
"""For a killed worker to be in service again: a Python with torch starts, beside everything else."""
_PAGES_S = 30.0
_MOVED_S = 120.0
_POLL_S = 0.01


@dataclass
class Service:
    running: RouterProcess
    prefill_workers: int
    decode_workers: int

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def target(self) -> str:
        return self._announced(r"and gRPC (\S+:\d+)")

    async def operate(self, command: str, *arguments: str) -> str:
        """`router COMMAND ...`, said to this router by its operator; what it answers."""
        port = self._announced(r"--admin-port (\d+)")
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("router"),
            *(command, *arguments, "--admin-port", port),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()
        return said.decode()

    def _announced(self, pattern: str) -> str:
        found = re.search(pattern, self.running.text())
        assert found, self.running.text()
        return found.group(1)

    def clients(self, count: int, *, router_may_die: bool = False) -> list[Client]:
        """Half over HTTP, half over gRPC."""
        frontends: list[Client] = [HttpClient(self.url, router_may_die), GrpcClient(self.target)]
        return [frontends[i % 2] for i in range(count)]

    def workers(self, role: str) -> list[psutil.Process]:
        """Worker processes of a role, "prefill" or "decode"."""
        return self.running.workers(f"{role.capitalize()}Worker")

    def processes(self) -> dict[str, psutil.Process]:
        """The router, the workers and what Ray runs, by name."""
        named = {"router": psutil.Process(self.running.process.pid)}
        for child in self.running.look():
            words = child.cmdline()
            name = Path(words[0]).name if words else child.name()
            named[f"{name} {child.pid}"] = child
        return named

    # ------------------------------------------------------------------------------- metrics

    async def are_all_workers_up(self) -> bool:
        """Says the router, which notices a killed worker some time after its end, and each of them."""
        up = sum(sample.value for sample in await _scrape(f"{self.url}/metrics", "baton_worker_up"))
        try:
            await self._of_workers("baton_kv_pages")
        except httpx.TransportError:
            return False
        return int(up) == self.prefill_workers + self.decode_workers

    async def all_workers_up(self) -> float:
        """Waits for it, and returns how long that took. Raises TimeoutError."""
        began = time.monotonic()
        async with asyncio.timeout(_BACK_S):
            while not await self.are_all_workers_up():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return time.monotonic() - began

    async def busiest_decode_worker(self) -> str:
        """Its name: the one whose requests hold the most pages."""
        held = [sample for sample in await self._pages() if sample.labels["state"] == "held"]
        decode = [sample for sample in held if sample.labels["role"] == "decode"]
        return max(decode, key=lambda sample: sample.value).labels["worker"]

    async def restart_busiest(self, timeout_s: int) -> None:
        """`router restart` of the busiest decode worker, again until an answer has moved off it: all of them
        may end before it begins to drain. Raises TimeoutError."""
        async with asyncio.timeout(_MOVED_S):
            while True:
                busiest = await self.busiest_decode_worker()
                said = await self.operate("restart", busiest, "--timeout", str(timeout_s))
                moved = re.search(r"(\d+) of its requests moved", said)
                assert moved, said
                if int(moved[1]):
                    return

    async def all_pages_back(self) -> None:
        """Waits until free + cached = total on every worker. Raises AssertionError."""
        deadline = time.monotonic() + _PAGES_S
        while lent := [sample for sample in await self._pages() if _is_lent(sample)]:
            assert time.monotonic() < deadline, f"pages do not come back: {lent}"
            await asyncio.sleep(0.1)

    async def total(self, name: str) -> float:
        """The sum of a metric over all workers."""
        return sum(sample.value for sample in await self._of_workers(name))

    async def _pages(self) -> list[Sample]:
        """And slots of recurrent states: they have the same accounts."""
        return await self._of_workers("baton_kv_pages") + await self._of_workers("baton_state_slots")

    async def _of_workers(self, name: str) -> list[Sample]:
        async with httpx.AsyncClient() as http:
            [group] = (await http.get(f"{self.url}/sd/workers")).json()
        workers = [_scrape(f"http://{target}/metrics", name) for target in group["targets"]]
        return [sample for samples in await asyncio.gather(*workers) for sample in samples]

    # ------------------------------------------------------------------------------- the log

    async def says(self, pattern: str, after: int, within_s: float) -> float:
        """Seconds until the log says so, behind its first `after` characters. Raises TimeoutError."""
        began = time.monotonic()
        async with asyncio.timeout(within_s):
            while not re.search(pattern, self.running.text()[after:]):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        return time.monotonic() - began


async def _scrape(url: str, name: str) -> list[Sample]:
    """Samples of one metric, with all its labels."""
    async with httpx.AsyncClient(timeout=10) as http:
        families = text_string_to_metric_families((await http.get(url)).text)
    return [sample for family in families for sample in family.samples if sample.name == name]


def _is_lent(pages: Sample) -> bool:
    return pages.value > 0 and pages.labels["state"] not in ("free", "cached")


@contextmanager
def serve(
    small: SmallModel,
    log: Path,
    *flags: str,
    mode: str = "disagg",
    prefill_workers: int = 1,
    decode_workers: int = 2,
) -> Iterator[Service]:
    """With a second decode worker to take over."""
    size = ("--decode-workers", str(decode_workers))
    if prefill_workers:
        size += ("--prefill-workers", str(prefill_workers))
    limits = ("--kv-pool-tokens", "16384", "--chunked-prefill-size", "128", "--handoff-timeout", "10")
    with router(log, "--mode", mode, *size, *limits, *flags, model=str(small.folder)) as running:
        running.wait_until_ready()
        yield Service(running, prefill_workers, decode_workers)
