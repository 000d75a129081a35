"""Selects the placement of sequences for the configured mode."""

from __future__ import annotations

from router.config.settings import Mode, RouterConfig
from router.dispatch.routing.adaptive import adaptive
from router.dispatch.routing.fixed import DisaggSelector, MixedSelector
from router.dispatch.routing.route import WorkerSelector
from router.dispatch.routing.worker_choice import WorkerChoice
from router.workers.registry import Registry

__all__ = ["selector_for"]


def selector_for(config: RouterConfig, registry: Registry) -> WorkerSelector:
    choice = WorkerChoice(registry, config.routing)
    match config.mode:
        case Mode.MIXED:
            return MixedSelector(registry, choice)
        case Mode.DISAGG:
            return DisaggSelector(registry, choice)
        case Mode.ADAPTIVE:
            return adaptive(config, registry, choice)
