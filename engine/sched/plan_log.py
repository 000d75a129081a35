"""One line for each prefill chunk of a step, at debug: in the words of vLLM's `SchedulerOutput`."""

from __future__ import annotations

import logging

from engine.core.plan import StepPlan

_log = logging.getLogger(__name__)


def log_chunks(plan: StepPlan) -> None:
    """O(prefill chunks), and nothing unless debug lines are wanted."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    for chunk in plan.prompts:
        _log.debug(
            "Chunked prefill. request: %d, num_computed_tokens: %d, num_scheduled_tokens: %d,"
            " num_prompt_tokens: %d",
            chunk.request.id,
            chunk.start,
            chunk.length,
            len(chunk.request.prompt),
        )
