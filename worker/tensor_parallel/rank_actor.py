"""One rank other than 0 as a Ray actor. This module imports no torch: the actor's environment comes first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from worker.log import log_to_stderr

if TYPE_CHECKING:
    from engine.parallel import Rendezvous
    from worker.config import WorkerConfig


class RankActor:
    """`run` serves for the life of the process."""

    def __init__(self, environment: Mapping[str, str], log_level: int, log_format: str) -> None:
        os.environ.update(environment)
        log_to_stderr(log_level, log_format)
        from worker.tensor_parallel.rank_process import run_rank  # imports torch, while rank 0 does

        self._run = run_rank

    def run(self, config: WorkerConfig, rendezvous: Rendezvous, rank: int) -> None:
        self._run(config, rendezvous, rank)
