"""Decides which workers compute a request. Pure: no sockets, no clock, no tensors.

`policy_for(...).place(request, view)` is the only choice that there is, of the server and of the simulator.
"""

from router.placement.adapters import AdapterPlace, LoadTimes
from router.placement.cluster_model import ClusterModel, WorkerFacts
from router.placement.policies.adaptive import AdaptivePlacement, policy_for
from router.placement.policies.by_load import POLICIES
from router.placement.policies.fixed import DisaggPlacement, MixedPlacement
from router.placement.policies.reads import ReadPlacement
from router.placement.policy import (
    ConsideredPair,
    HandoffRule,
    NoWorker,
    Placement,
    PlacementPolicy,
    QuarantinedPages,
    Why,
)
from router.placement.step_time import EVERYTHING, PRIOR, Drafting, Reach, StepTime, StepTimeFit, StepWork
from router.placement.view import (
    ClusterView,
    Demand,
    Health,
    LinkView,
    Preference,
    PromptWork,
    RequestView,
    Targets,
    WorkerView,
)

__all__ = [
    "EVERYTHING",
    "POLICIES",
    "PRIOR",
    "AdapterPlace",
    "AdaptivePlacement",
    "ClusterModel",
    "ClusterView",
    "ConsideredPair",
    "Demand",
    "DisaggPlacement",
    "Drafting",
    "HandoffRule",
    "Health",
    "LinkView",
    "LoadTimes",
    "MixedPlacement",
    "NoWorker",
    "Placement",
    "PlacementPolicy",
    "Preference",
    "PromptWork",
    "QuarantinedPages",
    "Reach",
    "ReadPlacement",
    "RequestView",
    "StepTime",
    "StepTimeFit",
    "StepWork",
    "Targets",
    "Why",
    "WorkerFacts",
    "WorkerView",
    "policy_for",
]
