"""Builds an engine's runner, and what drafts for it."""

from __future__ import annotations

from collections.abc import Callable

from common.progress import Progress, silent
from engine.config import EngineConfig
from engine.core.draft_source import DraftSource
from engine.executor.draft_model import DraftModel
from engine.executor.head_drafts import HeadDrafts, companion_of, head_of
from engine.executor.runner import ModelRunner
from engine.parallel.communicator import SINGLE_RANK, Communicator


def build_runner(
    config: EngineConfig,
    progress: Progress = silent,
    communicator: Callable[[], Communicator] = lambda: SINGLE_RANK,
) -> tuple[ModelRunner, DraftSource | None]:
    """Build the runner of a worker, or of the first of its ranks. `communicator` is called when the other
    ranks are waited for.
    """
    if (head := head_of(config)) is not None:
        runner = ModelRunner(config, progress, communicator(), companion_of(config, head))
        return runner, HeadDrafts(config, head, runner, progress)
    # Before the target's runner, whose pool takes the memory that is left.
    drafts = DraftModel.load(config, progress)
    return ModelRunner(config, progress, communicator()), drafts
