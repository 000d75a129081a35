"""The real engine on a simulated H200: `simulator.runner`, with the settings that benchmarks compare."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.device.defaults import GPU_TOKEN_TILE
from engine.presets import PRESETS, Preset
from simulator.worker import COSTLY_CONTEXT

CHUNK_BUDGET: Final = 16_384
FRONT_S: Final = 7e-3
"""Client, HTTP, router, gRPC and the worker's inbox, there and back, at 30 requests a second."""
_POOL_TOKENS: Final = 960_000


def simulated_config(preset: Preset = Preset.BATON, itl_target_s: float | None = None) -> EngineConfig:
    settings = PRESETS[preset]
    scheduler = settings.scheduler
    if scheduler.chunk_budget is not None:
        scheduler = replace(scheduler, chunk_budget=CHUNK_BUDGET)
    return EngineConfig(
        model_path=Path("none"),
        page_size=settings.page_size,
        num_pages=_POOL_TOKENS // settings.page_size,
        max_model_len=40_960,
        scheduler=replace(
            scheduler,
            itl_target_s=itl_target_s,
            token_tile=GPU_TOKEN_TILE,
            costly_context=COSTLY_CONTEXT,
        ),
        radix_cache=False,
        overlap=True,
    )
