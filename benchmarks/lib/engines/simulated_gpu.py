"""The real engine on a simulated H200: `simulator.runner`, with the settings that benchmarks compare."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Final

from engine.config import EngineConfig
from engine.device.defaults import GPU_TOKEN_TILE
from engine.sched.presets import PRESETS, Preset
from router.cluster.worker_config.scheduler_plan import scheduler_for
from router.config.flags.command_line import parse
from router.config.flags.values import ConfigError
from simulator.worker import COSTLY_CONTEXT

CHUNK_BUDGET: Final = 16_384
FRONT_S: Final = 7e-3
"""Client, HTTP, router, gRPC and the worker's inbox, there and back, at 30 requests a second."""
_POOL_TOKENS: Final = 960_000
_CONTEXT: Final = 131_072
"""Context of a scheduler that flags give, in tokens."""


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


class FlagLineError(Exception):
    """The flags are wrong; the message is that of `router`."""


def config_of_flags(line: str) -> EngineConfig:
    """Step and page size are those that `router` would choose on an H200. Raises FlagLineError."""
    try:
        config = parse(["--model", "simulated", *shlex.split(line)])
    except ConfigError as error:
        raise FlagLineError("; ".join(error.problems)) from None
    preset = config.scheduling.preset
    own = CHUNK_BUDGET if preset is Preset.BATON else PRESETS[preset].scheduler.chunk_budget
    asked = config.chunked_prefill_size
    chunk = own if asked is None else None if asked == -1 else asked
    base = simulated_config()
    return replace(
        base,
        page_size=config.page_size,
        num_pages=base.num_pages * base.page_size // config.page_size,
        max_model_len=config.max_model_len or _CONTEXT,
        scheduler=scheduler_for(config, chunk=chunk, on_gpu=True, costly_context=COSTLY_CONTEXT),
    )
