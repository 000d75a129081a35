"""The decode worker as a Ray actor: `ray.remote(DecodeWorker).options(...).remote(config)`."""

from __future__ import annotations

import logging

from worker.actor import WorkerActor
from worker.config import WorkerConfig

__all__ = ["DecodeWorker"]


class DecodeWorker(WorkerActor):
    def __init__(self, config: WorkerConfig, bundle: int = 0, log_level: int = logging.INFO) -> None:
        from decode_worker.assemble import assemble

        super().__init__(config, assemble, bundle, log_level)
