"""The decode worker as a Ray actor: `ray.remote(DecodeWorker).options(...).remote(config)`."""

from __future__ import annotations

from worker.process.actor import WorkerActor

__all__ = ["DecodeWorker"]


class DecodeWorker(WorkerActor):
    """Executes every command, like all workers."""
