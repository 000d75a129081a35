"""A worker as a Ray actor. Ray decides where it lives and restarts it; requests never pass through here.

The router imports the actor classes to name them, and computes nothing: what brings torch with it is
imported when an actor comes to life.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ray

from worker.config import WorkerConfig
from worker.log import log_to_stderr
from worker.network import own_address

if TYPE_CHECKING:
    from worker.process.engine_loop import EngineDied

__all__ = ["Listening", "LoadProgress", "WorkerActor"]

log = logging.getLogger(__name__)

_LAST_WORDS_S = 0.2
"""For sessions and health to reach their readers, before the process ends."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    stage: str
    """A short phrase for a person."""
    done: int
    """Of `total` bytes."""
    total: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Where this incarnation serves, and how to know that it is the one that does."""

    address: str
    """host:port of the gRPC server."""
    certificate: bytes | None
    """PEM, drawn by this incarnation; None where nothing is encrypted."""


class WorkerActor:
    """Base of the actor classes, one for each role. All methods run on the actor's asyncio loop."""

    def __init__(self, config: WorkerConfig, bundle: int = 0, log_level: int = logging.INFO) -> None:
        """`bundle`: of the actor's placement group, where there is room for its other ranks too."""
        from worker.process.host import WorkerHost
        from worker.tensor_parallel.ray_rank_processes import rank_processes_of

        log_to_stderr(log_level, config.log_format)
        config = replace(config, host=_host(config), node=ray.get_runtime_context().get_node_id())
        self._host = WorkerHost(
            config,
            on_death=_end_process,
            progress=self._on_progress,
            rank_processes=rank_processes_of(config, bundle, log_level),
        )
        self._progress = LoadProgress("starting", 0, 0)
        self._starting: asyncio.Task[Listening] | None = None

    async def start(self) -> Listening:
        """Where it serves, once it does. To be called again after every restart by Ray; a second call of
        one incarnation waits for the first. Raises what loading raises.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def progress(self) -> LoadProgress:
        """How far `start` is."""
        return self._progress

    async def stop(self) -> None:
        """Ends what `start` started; the actor itself is Ray's to end."""
        if self._starting is not None:
            await self._host.stop()

    async def _start(self) -> Listening:
        await self._host.start()
        return Listening(self._host.address, self._host.certificate)

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        self._progress = LoadProgress(stage, done, total)


def _host(config: WorkerConfig) -> str:
    if config.network is not None:
        return own_address(config.network)
    return config.host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _end_process(death: EngineDied) -> None:
    """Let Ray start this worker anew: a process whose engine failed has nothing left to trust."""
    log.critical("%s; the worker ends, to be started anew", death)
    asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
