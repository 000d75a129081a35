"""Decides which workers compute a request. Pure: no sockets, no clock, no tensors."""

from router.placement.adaptive import AdaptivePlacement
from router.placement.ledger import Ledger, WorkerFacts
from router.placement.moves import Move, MoveReason, Moves, RunningAnswer, remaining_tokens
from router.placement.policies import (
    Candidate,
    DisaggPlacement,
    MixedPlacement,
    NoWorker,
    Placement,
    PlacementPolicy,
    Why,
)
from router.placement.step_time import PRIOR, StepTime, StepTimeFit, StepWork
from router.placement.view import (
    ClusterView,
    Demand,
    Link,
    Preference,
    PromptWork,
    RequestView,
    Targets,
    WorkerView,
)

__all__ = [
    "PRIOR",
    "AdaptivePlacement",
    "Candidate",
    "ClusterView",
    "Demand",
    "DisaggPlacement",
    "Ledger",
    "Link",
    "MixedPlacement",
    "Move",
    "MoveReason",
    "Moves",
    "NoWorker",
    "Placement",
    "PlacementPolicy",
    "Preference",
    "PromptWork",
    "RequestView",
    "RunningAnswer",
    "StepTime",
    "StepTimeFit",
    "StepWork",
    "Targets",
    "Why",
    "WorkerFacts",
    "WorkerView",
    "remaining_tokens",
]
