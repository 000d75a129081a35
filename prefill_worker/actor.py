"""The prefill worker as a Ray actor: `ray.remote(PrefillWorker).options(...).remote(config)`."""

from __future__ import annotations

from worker.process.actor import WorkerActor

__all__ = ["PrefillWorker"]


class PrefillWorker(WorkerActor):
    """Executes every command, like all workers; its configuration is set by `preferences`."""
