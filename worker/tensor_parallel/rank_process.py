"""The process of a rank other than 0: it computes its part of every step that rank 0 sends."""

from __future__ import annotations

import logging

import torch

from common.garbage_collection import tune_gc
from engine.core.batch.step_inputs import StepInputs
from engine.core.weights import NewWeights
from engine.errors import AdapterRefused, RankLost, RefillRefused, WeightsIncomplete
from engine.executor.runner import ModelRunner
from engine.parallel import Rendezvous, StepChannel, join
from worker.config import WorkerConfig
from worker.tensor_parallel.rank_kv import serve_kv
from worker.tensor_parallel.rank_tiers import serve_tiers

log = logging.getLogger(__name__)


def run_rank(config: WorkerConfig, rendezvous: Rendezvous, rank: int) -> None:
    """Returns when rank 0 has closed its runner or has ended. Raises what loading and computing raise.

    Between steps it waits for rank 0 without a timeout; the kernel closes the connection when that process
    ends.
    """
    device = torch.device(config.engine.device)
    communicator = join(rendezvous, rank, device, timeout_s=config.step_timeout_s)
    close = communicator.close
    try:
        runner = ModelRunner(config.engine, communicator=communicator)
        close = runner.close
        tiers = None if config.tiers is None else serve_tiers(config, runner)
        if config.kv_by_ranks:
            serve_kv(config, runner)
        tune_gc()
        log.info("rank %d of %s is ready", rank, config.worker_id)
        follow(StepChannel(communicator), runner)
        if tiers is not None:
            tiers.join()
    except RankLost as error:
        log.info("rank %d of %s ends: %s", rank, config.worker_id, error)
    finally:
        close()


def follow(steps: StepChannel, runner: ModelRunner) -> None:
    """Do as rank 0 does until it closes its runner."""
    while (command := steps.receive()) is not None:
        if isinstance(command, NewWeights):
            try:
                runner.refill(command)
            except (RefillRefused, WeightsIncomplete) as error:  # of rank 0 too, which decides what follows
                log.error("new weights from %s: %s", command.checkpoint, error)
        elif isinstance(command, StepInputs):
            runner.execute_step(command)
        elif runner.adapters is not None:
            try:
                runner.adapters.follow(command)
            except AdapterRefused as error:  # by rank 0 too, which reports it
                log.error("%s", error)
