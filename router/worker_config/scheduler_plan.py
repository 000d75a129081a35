"""Derives the scheduler's settings from the flags. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, TypeVar

from engine.config import Batching, SchedulerConfig
from engine.device.defaults import GPU_TOKEN_TILE
from engine.presets import PRESETS, Preset
from router.config.settings import Mode, RouterConfig

__all__ = ["scheduler_for"]

_GPU_ITL_TARGET_MS: Final = 20.0

T = TypeVar("T")


def scheduler_for(
    config: RouterConfig, *, chunk: int | None, on_gpu: bool, costly_context: float
) -> SchedulerConfig:
    """The preset's settings, overridden by flags.

    `chunk`: token budget of a step; None: no budget, whole prompts.
    """
    asked = config.scheduling
    base = PRESETS[asked.preset].scheduler
    whole_prompts = asked.disable_chunked_prefill or config.chunked_prefill_size == -1
    own = asked.preset is Preset.BATON
    sizes_chunks = not whole_prompts and asked.effective_batching is Batching.MIXED
    target = _itl_target_s(config, has_default=on_gpu and own) if sizes_chunks else None
    averages = config.mode is Mode.ADAPTIVE
    return replace(
        base,
        policy=asked.schedule_policy or base.policy,
        batching=asked.batching or base.batching,
        max_running_requests=config.max_running_requests,
        max_waiting_requests=config.max_queued_requests,
        chunk_budget=chunk,
        chunked_prefill=base.chunked_prefill and not whole_prompts,
        max_prefill_tokens=_or(asked.max_prefill_tokens, base.max_prefill_tokens),
        long_prefill_token_threshold=asked.effective_threshold,
        max_partial_prefills=asked.effective_partial_prefills,
        max_long_partial_prefills=asked.effective_long_prefills,
        fair_partial_prefills=asked.fair_partial_prefills or base.fair_partial_prefills,
        schedule_conservativeness=_or(asked.schedule_conservativeness, base.schedule_conservativeness),
        low_priority_values_first=asked.low_priority_values_first or base.low_priority_values_first,
        priority_preemption_threshold=_or(
            asked.priority_preemption_threshold, base.priority_preemption_threshold
        ),
        aging_tokens=_or(asked.aging_tokens, base.aging_tokens),
        tenant_quantum=_or(asked.fair_share_tokens, base.tenant_quantum),
        itl_target_s=None if averages else target,
        tpot_target_s=target if averages else None,
        pause_target_s=config.pause_target_ms / 1000 if averages and config.pause_target_ms else None,
        token_tile=GPU_TOKEN_TILE if on_gpu and own else 1,
        costly_context=costly_context if own else math.inf,
        speculation=asked.speculation,
    )


def _itl_target_s(config: RouterConfig, *, has_default: bool) -> float | None:
    target = config.itl_target_ms
    if target is None and has_default:
        target = _GPU_ITL_TARGET_MS
    return target / 1000 if target else None


def _or(given: T | None, default: T) -> T:
    return default if given is None else given
