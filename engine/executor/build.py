"""Builds an engine's runner, and what drafts for it."""

from __future__ import annotations

from collections.abc import Callable

from common.progress import Progress, silent
from engine.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.executor.draft_model import DraftModel
from engine.executor.eagle_drafts import EagleDrafts, companion_of
from engine.executor.runner import ModelRunner
from engine.model_config.model_spec import ModelSpec
from engine.parallel.communicator import SINGLE_RANK, Communicator

__all__ = ["build_runner"]


def build_runner(
    config: EngineConfig,
    progress: Progress = silent,
    communicator: Callable[[], Communicator] = lambda: SINGLE_RANK,
) -> tuple[ModelRunner, DraftSource | None]:
    """Of a worker, or of the first of its ranks; `communicator` is called when the others are waited for."""
    speculation = config.scheduler.speculation
    if speculation is not None and speculation.model_path is not None:
        head = ModelSpec.from_folder(speculation.model_path)
        if head.eagle is not None:
            runner = ModelRunner(config, progress, communicator(), companion_of(config, head))
            return runner, EagleDrafts(config, runner, progress)
    # Before the target's runner, whose pool takes the memory that is left.
    drafts = DraftModel.load(config, progress)
    return ModelRunner(config, progress, communicator()), drafts
