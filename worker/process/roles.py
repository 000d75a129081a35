"""The Ray actors of both roles: `ray.remote(ACTORS[role]).options(...).remote(config)`."""

from __future__ import annotations

from typing import Final

from worker.config import WorkerRole
from worker.process.actor import WorkerActor


class PrefillWorker(WorkerActor):
    """Executes every command, like all workers; it captures no CUDA graphs of decode batches."""


class DecodeWorker(WorkerActor):
    """Executes every command, like all workers; it has the default configuration."""


ACTORS: Final = {WorkerRole.PREFILL: PrefillWorker, WorkerRole.DECODE: DecodeWorker}
