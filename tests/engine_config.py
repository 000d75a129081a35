"""Engine configurations for tests, with the scheduler's settings beside the engine's."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig, SchedulerConfig

_OF_SCHEDULER = {field.name for field in fields(SchedulerConfig)}


def engine_config(**settings: Any) -> EngineConfig:
    """Settings of either dataclass by their own names; no model unless `model_path` is given."""
    base = settings.pop("scheduler", SchedulerConfig())
    own = {name: settings.pop(name) for name in list(settings) if name in _OF_SCHEDULER}
    return EngineConfig(**{"model_path": Path("none")} | settings, scheduler=scheduler_config(base, **own))


def scheduler_config(base: SchedulerConfig, **settings: Any) -> SchedulerConfig:
    """`chunk_budget=None` by itself turns chunked prefill off."""
    if "chunk_budget" in settings and settings["chunk_budget"] is None:
        settings.setdefault("chunked_prefill", False)
    return replace(base, **settings)
