"""The placement policy of each mode."""

from __future__ import annotations

from router.config.choices import Mode, Routing
from router.placement.policies.adaptive import AdaptivePlacement
from router.placement.policies.by_load import POLICIES
from router.placement.policies.fixed import DisaggPlacement, MixedPlacement
from router.placement.policy import PlacementPolicy
from router.placement.view import Targets


def policy_for(mode: Mode, routing: Routing, targets: Targets) -> PlacementPolicy:
    """`routing` chooses among equal workers in fixed modes; `targets` are those of adaptive mode."""
    match mode:
        case Mode.MIXED:
            return MixedPlacement(POLICIES[routing])
        case Mode.DISAGG:
            return DisaggPlacement(POLICIES[routing])
        case Mode.ADAPTIVE:
            return AdaptivePlacement(targets)
