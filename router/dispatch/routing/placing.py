"""From the configured mode to the rule by which sequences are placed."""

from __future__ import annotations

from router.config.settings import Mode, RouterConfig
from router.dispatch.adaptive_placing import adaptive
from router.dispatch.fixed_placing import DisaggPlacing, MixedPlacing
from router.dispatch.route import Placing
from router.dispatch.worker_choice import WorkerChoice
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
