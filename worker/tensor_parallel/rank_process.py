"""A rank that follows: it computes its part of every step that its leader announces, and nothing else."""

from __future__ import annotations

import logging

import torch

from common.garbage_collection import tune_gc
from engine.errors import RankLost
from engine.executor.runner import ModelRunner
from engine.parallel import Rendezvous, join
from worker.config import WorkerConfig
from worker.tensor_parallel.rank_kv import serve_kv

__all__ = ["run_rank"]

log = logging.getLogger(__name__)


def run_rank(config: WorkerConfig, rendezvous: Rendezvous, rank: int) -> None:
    """Returns when the leader has closed, or is gone. Raises what loading and computing raise.

    Between steps it waits for as long as the leader lives; the kernel tells it when that is over.
    """
    device = torch.device(config.engine.device)
    group = join(rendezvous, rank, device, patience_s=config.step_timeout_s)
    part = group.close
    try:
        runner = ModelRunner(config.engine, ranks=group)
        part = runner.close
        if config.kv_by_ranks:
            serve_kv(config, runner)
        tune_gc()
        log.info("rank %d of %s follows", rank, config.worker_id)
        while (inputs := group.receive_step()) is not None:
            runner.execute_step(inputs)
    except RankLost as error:
        log.info("rank %d of %s ends: %s", rank, config.worker_id, error)
    finally:
        part()
