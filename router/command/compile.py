"""`router compile`: compiles the kernels of a model's workers on this machine, before they start."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from rich.console import Console

from engine.errors import EngineError
from engine.kernels.compilations import COMPILATIONS
from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.modeling.loader.checkpoint import CheckpointError, resolve
from router.cluster.worker_config.machine import PlanError
from router.cluster.worker_config.this_machine import this_machine
from router.cluster.worker_config.worker_plan import plan_workers
from router.command.progress import StartupDisplay
from router.config.flags.command_line import parse_models
from router.config.flags.values import ConfigError
from router.config.settings import RouterConfig
from worker.compile_kernels import compile_kernels
from worker.config import WorkerConfig

_USAGE_ERROR: Final = 2
_CANNOT: Final = (CheckpointError, EngineError, PlanError, UnsupportedModel, WeightsError)
"""Errors that the user can act on."""


def run(argv: Sequence[str]) -> int:
    """Arguments are those of `router` itself. Exit status: 0, 1 if something cannot be compiled, 2 on usage
    errors."""
    try:
        configs = parse_models(argv or ["--help"])
    except ConfigError as error:
        for problem in error.problems:
            print(f"router compile: {problem}", file=sys.stderr)
        return _USAGE_ERROR
    logging.basicConfig(level=configs[0].operation.log_level.value.upper(), stream=sys.stderr)
    began = time.monotonic()
    console = Console(stderr=True)
    try:
        with StartupDisplay(console) as display:
            for config in configs:
                for worker in workers_of(config):
                    name = f"kernels of {worker.model}, {worker.role.value} worker"
                    COMPILATIONS.on_note = partial(_say, display, name)
                    with display.stage(name):
                        compile_kernels(worker, partial(display.loading, name))
    except _CANNOT as error:
        print(f"router compile: {error}", file=sys.stderr)
        return 1
    console.print(
        f"all kernels are there: {COMPILATIONS.compiled.total()} compiled now,"
        f" {COMPILATIONS.loaded.total()} found; {time.monotonic() - began:.0f} s",
        highlight=False,
    )
    return 0


def _say(display: StartupDisplay, name: str, said: str) -> None:
    display.loading(name, f"Compiling: {said}", 0, 0)


def workers_of(config: RouterConfig) -> list[WorkerConfig]:
    """One of each role that `config` starts, on machines like this one."""
    checkpoint = resolve(config.model, keep_codes=config.keeps_codes)
    plans = plan_workers(config, checkpoint, this_machine(config))
    return list({plan.config.role: plan.config for plan in plans}.values())
