"""Compiles the kernels of a worker without its weights, its router and its other ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from common.progress import Progress
from engine.device.memory import total_bytes
from engine.device.small_copies import use_kernels
from engine.executor.build import build_runner
from engine.executor.runner import ModelRunner
from engine.kernels.cpu.library import cpu_kernels
from engine.loop.warmup import warm_up, warmup_plan_for
from engine.model_config.shard import Shard
from engine.parallel.communicator import SINGLE_RANK, Communicator, SingleRank
from worker.config import WorkerConfig
from worker.kv_pool_access import digester_of, layout_of, memory_of


def compile_kernels(config: WorkerConfig, progress: Progress) -> None:
    """Start a worker's engine with random weights, warm it up, and close it: what that compiles is kept.

    Of a worker with several ranks, only the first one's, whose kernels are those of the others. Raises what
    the start of an engine raises.
    """
    engine = replace(config.engine, load_format="dummy")
    if engine.device == "cpu":
        cpu_kernels(getattr(torch, engine.dtype))
        return
    engine = config.sizes.on(engine, total_bytes(engine.device))
    runner, drafts = build_runner(engine, progress, _alone(engine.tensor_parallel_size))
    try:
        _copy_kernels(config, runner)
        progress("Warming up", 0, 0)
        warm_up(runner, engine, warmup_plan_for(engine), drafts)
    finally:
        if drafts is not None:
            drafts.close()
        runner.close()
        del runner, drafts
        gc.collect()
        torch.cuda.empty_cache()  # for the next worker's


def _copy_kernels(config: WorkerConfig, runner: ModelRunner) -> None:
    """Compile the kernels that copy KV to other workers and to tiers."""
    if config.tiers is not None:
        use_kernels(runner.kv.tensor.device)
    if config.transport is not None and runner.communicator.shard.size == 1:
        digester_of(runner.kv, memory_of(runner.kv), layout_of(runner))


def _alone(ranks: int) -> Callable[[], Communicator]:
    return lambda: SINGLE_RANK if ranks == 1 else _FirstRank(Shard(0, ranks))


class _FirstRank(SingleRank):
    """Rank 0 of several, without the others: its results are of the right shape, and wrong."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def gather_columns(self, piece: Tensor, total: int) -> Tensor:
        return torch.nn.functional.pad(piece, (0, total - piece.shape[1]))
