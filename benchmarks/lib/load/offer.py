"""Send a workload to an OpenAI server, each request at its arrival time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.lib.load.client import Record, Target, open_client, send
from benchmarks.lib.load.workload import Work
from common.garbage_collection import freeze_gc


async def offer(
    target: Target,
    workload: Sequence[Work],
    *,
    max_concurrency: int | None = None,
    console: Console | None = None,
) -> list[Record]:
    """Send every request at its time; one record a request, in the workload's order.

    `console`, if it is a terminal, shows progress.
    """
    freeze_gc()  # or a collection of this process would be taken for a pause of the server
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[running]} running"),
        TimeElapsedColumn(),
        console=console,
        disable=console is None or not console.is_terminal,
        transient=True,
    )
    bar = progress.add_task("requests", total=len(workload), running=0)
    running = 0

    async def one(client: httpx.AsyncClient, work: Work, start: float) -> Record:
        nonlocal running
        await asyncio.sleep(start + work.arrival_s - time.monotonic())
        async with gate:
            running += 1
            progress.update(bar, running=running)
            record = await send(client, target, work)
            running -= 1
            progress.update(bar, advance=1, running=running)
            return record

    with progress:
        async with open_client(target) as client:
            start = time.monotonic()
            return await asyncio.gather(*(one(client, work, start) for work in workload))
