"""The prefill worker as a Ray actor: `ray.remote(PrefillWorker).options(...).remote(config)`."""

from __future__ import annotations

import logging

from worker.actor import WorkerActor
from worker.config import WorkerConfig

__all__ = ["PrefillWorker"]


class PrefillWorker(WorkerActor):
    def __init__(self, config: WorkerConfig, bundle: int = 0, log_level: int = logging.INFO) -> None:
        from prefill_worker.assemble import assemble

        super().__init__(config, assemble, bundle, log_level)
