"""A simulated engine whose scheduler is given by flags of `router`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Final

from benchmarks.lib.engines.simulated_gpu import CHUNK_BUDGET, simulated_config
from engine.config import EngineConfig
from engine.presets import PRESETS, Preset
from router.config.flags.command_line import parse
from router.config.flags.values import ConfigError
from router.worker_config.scheduler_plan import scheduler_for
from simulator.worker import COSTLY_CONTEXT

_CONTEXT: Final = 131_072


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
