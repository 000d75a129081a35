"""Routers that join a running Ray, and the workers that they find or start there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import psutil

from tests.faults.support.service import Service, serve
from tests.faults.support.small_model import SmallModel

__all__ = ["all_ended", "cached_tokens", "joined", "worker_pids"]

_ENDED_S = 60.0


def joined(
    small: SmallModel, address: str, log: Path, *flags: str, prefill_workers: int = 1, decode_workers: int = 1
) -> AbstractContextManager[Service]:
    """A router that joins that Ray."""
    return serve(
        small,
        log,
        "--ray-address",
        address,
        "--worker-cpus",
        "1",
        *flags,
        prefill_workers=prefill_workers,
        decode_workers=decode_workers,
    )


async def worker_pids(service: Service) -> dict[str, int]:
    lines = (await service.operate("workers")).splitlines()
    found = [re.match(r"(\S+) .* pid (\d+) on ", line) for line in lines]
    return {match[1]: int(match[2]) for match in found if match}


async def all_ended(pids: Iterable[int]) -> None:
    """Returns when no process has one of these ids: Ray ends workers after the command that says so. Raises
    TimeoutError."""
    left = set(pids)
    async with asyncio.timeout(_ENDED_S):
        while left := set(filter(psutil.pid_exists, left)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def cached_tokens(service: Service, prompt: tuple[int, ...]) -> int:
    body = {"prompt": prompt, "max_tokens": 4, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = (await client.post(f"{service.url}/v1/completions", json=body)).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
