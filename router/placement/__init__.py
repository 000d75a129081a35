"""Decides which workers compute a request. Pure: no sockets, no clock, no tensors."""

from router.placement.adaptive import AdaptivePlacement
from router.placement.cluster_model import ClusterModel, WorkerFacts
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
    "ClusterModel",
    "ClusterView",
    "Demand",
    "DisaggPlacement",
    "Link",
    "MixedPlacement",
    "NoWorker",
    "Placement",
    "PlacementPolicy",
    "Preference",
    "PromptWork",
    "RequestView",
    "StepTime",
    "StepTimeFit",
    "StepWork",
    "Targets",
    "Why",
    "WorkerFacts",
    "WorkerView",
]
