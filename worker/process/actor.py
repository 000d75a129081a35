"""A worker as a Ray actor. Ray places and restarts it; requests do not pass through Ray.

The router imports the actor classes only to create actors, so modules that import torch are imported when an
actor starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from common.progress import StageTimes
from engine.kernels.compilations import COMPILATIONS
from worker.config import WorkerConfig
from worker.log import log_to_stderr
from worker.network import own_address
from worker.process.last_words import LastWords
from worker.process.router_watch import RayContact
from worker.tensor_parallel.ray_rank_processes import rank_processes_of

if TYPE_CHECKING:
    from worker.process.engine_loop import EngineDied

log = logging.getLogger(__name__)

_LAST_WORDS_S = 0.2
"""Delay before the process ends, so that sessions and health checks get the last status."""


@dataclass(frozen=True, slots=True)
class LoadProgress:
    stage: str
    """A short phrase to display."""
    done: int
    """Bytes done, of `total`."""
    total: int


@dataclass(frozen=True, slots=True)
class Listening:
    """Address and certificate of this worker process."""

    address: str
    """host:port of the gRPC server."""
    certificate: bytes | None
    """PEM, generated at start; None: plaintext."""
    node: str = ""
    """Ray's id of the node that it runs on."""
    stages: tuple[tuple[str, float], ...] = ()
    """What the start consisted of, each with its seconds."""


class WorkerActor:
    """Base of the actor classes, one for each role. All methods run on the actor's asyncio loop."""

    def __init__(self, config: WorkerConfig, bundle: int = 0, log_level: int = logging.INFO) -> None:
        """`bundle`: of the actor's placement group, where there is room for its other ranks too."""
        self._stages = StageTimes("Importing torch")
        os.environ.update(config.environment)  # read by libraries that the following imports load
        rank_processes = rank_processes_of(config, bundle, log_level)
        from worker.process.host import WorkerHost

        log_to_stderr(log_level, config.log_format)
        self._last_words = LastWords(_file_of(config))
        config = replace(config, predecessor=self._last_words.predecessor)
        config = replace(config, host=_host(config), node=ray.get_runtime_context().get_node_id())
        self._host = WorkerHost(
            config,
            on_death=self._end_process,
            progress=self._on_progress,
            rank_processes=rank_processes,
            is_reachable=RayContact().answers,
        )
        self._progress = LoadProgress("starting", 0, 0)
        COMPILATIONS.on_note = self._on_compiled
        self._starting: asyncio.Task[Listening] | None = None

    async def start(self) -> Listening:
        """Start the worker and return its address. Call it again after every restart by Ray; a second call
        to one incarnation waits for the first. Raises what loading raises.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def progress(self) -> LoadProgress:
        """Progress of `start`."""
        return self._progress

    async def routers(self) -> list[str]:
        """The names of the connected routers."""
        return self._host.routers if self._starting is not None and self._starting.done() else []

    async def node(self) -> str:
        """Ray's id of the node that it runs on."""
        return self._host.config.node

    async def drain(self, seconds: float) -> bool:
        """See `WorkerHost.drain`. A worker that is not up has no requests."""
        if self._starting is None or not self._starting.done():
            return True
        return await self._host.drain(seconds)

    async def stop(self) -> None:
        """Stop the worker, but not the actor."""
        self._last_words.say("it was stopped")
        if self._starting is not None:
            await self._host.stop()

    async def _start(self) -> Listening:
        await self._host.start()
        host = self._host
        return Listening(host.address, host.certificate, host.config.node, self._stages.until_now())

    def _end_process(self, death: EngineDied) -> None:
        """Exit, so that Ray restarts the worker with a new process."""
        log.critical("%s; the worker exits, and Ray restarts it", death)
        self._last_words.say(str(death))
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        self._stages.enter(stage.partition(":")[0])
        self._progress = LoadProgress(stage, done, total)

    def _on_compiled(self, said: str) -> None:
        self._progress = LoadProgress(f"{self._stages.current}: {said}", 0, 0)


def _host(config: WorkerConfig) -> str:
    if config.network is not None:
        return own_address(config.network)
    return config.host or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _file_of(config: WorkerConfig) -> Path:
    """Where this worker's processes on this node leave their last words: beside Ray's logs.

    Workers of two clusters may have the same name; the certificate is that of the cluster's routers.
    """
    cluster = hashlib.blake2b(config.router_certificate or b"", digest_size=4).hexdigest()
    node: Any = ray._private.worker._global_node
    logs = Path(node.get_logs_dir_path())
    return logs / f"baton-{config.worker_id}-{cluster}.end"
