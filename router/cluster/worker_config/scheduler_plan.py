"""Derives the scheduler's settings from the flags. Pure arithmetic."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

from engine.config import Batching, SchedulerConfig
from engine.device.defaults import GPU_TOKEN_TILE
from engine.sched.presets import PRESETS, Preset
from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.config.table import SETTINGS

_GPU_ITL_TARGET_MS: Final = 20.0


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
        **_given(config),
        chunk_budget=chunk,
        chunked_prefill=base.chunked_prefill and not whole_prompts,
        long_prefill_token_threshold=asked.effective_threshold,
        max_long_partial_prefills=asked.effective_long_prefills,
        itl_target_s=None if averages else target,
        tpot_target_s=target if averages else None,
        pause_target_s=config.pause_target_ms / 1000 if averages and config.pause_target_ms else None,
        token_tile=GPU_TOKEN_TILE if on_gpu and own else 1,
        costly_context=costly_context if own else math.inf,
        speculation=asked.speculation,
    )


def _given(config: RouterConfig) -> dict[str, Any]:
    """Fields of SchedulerConfig that a setting sets as it is, without those that are left to the preset."""
    values = {own.option.scheduler: own.of(config) for own in SETTINGS.values()}
    return {
        name: value for name, value in values.items() if name and value is not None and value is not False
    }


def _itl_target_s(config: RouterConfig, *, has_default: bool) -> float | None:
    target = config.itl_target_ms
    if target is None and has_default:
        target = _GPU_ITL_TARGET_MS
    return target / 1000 if target else None
