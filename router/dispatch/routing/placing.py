"""Selects the placement of sequences for the configured mode."""

from __future__ import annotations

from router.config.settings import Mode, RouterConfig
from router.dispatch.routing.adaptive import adaptive
from router.dispatch.routing.fixed import DisaggPlacing, MixedPlacing
from router.dispatch.routing.route import Placing
from router.dispatch.routing.worker_choice import WorkerChoice
from router.workers.registry import Registry

__all__ = ["placing_for"]


def placing_for(config: RouterConfig, registry: Registry) -> Placing:
    choice = WorkerChoice(registry, config.routing)
    match config.mode:
        case Mode.MIXED:
            return MixedPlacing(registry, choice)
        case Mode.DISAGG:
            return DisaggPlacing(registry, choice)
        case Mode.ADAPTIVE:
            return adaptive(config, registry, choice)
