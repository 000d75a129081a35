"""A model runner without a model: a formula gives the time of each step, and a clock jumps to its end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from common.kv_groups import ONE_GROUP, KVGroup
from common.sidecars import KINDS
from engine.core.plan import StepPlan
from engine.core.weights import NewWeights, WeightsIdentity
from engine.executor.base import StepResult
from simulator.device import StepCosts

_TOKEN: Final = 5
_GRAPH_S: Final = 1e-4
"""To launch one graph of a chain."""
_LEAD: Final = 0.25
"""Part of a launch after which the host may turn to something else."""
_HOST_NOISE: Final = (0.9, 1.4)
_DEVICE_NOISE: Final = (0.985, 1.03)


@dataclass(slots=True)
class Clock:
    """The time of one engine, in seconds. It is ahead of other engines' by a step at most."""

    time: float = 0.0

    def now(self) -> float:
        return self.time

    def wait_until(self, at: float) -> None:
        self.time = max(self.time, at)


@dataclass(frozen=True, slots=True)
class _Model:
    kv_groups: tuple[KVGroup, ...]
    vocab_size: int = 1 << 60
    eos_token_ids: tuple[int, ...] = ()
    vision: None = None


class FormulaRunner:
    """Runs the steps of an engine on a device that is only a formula. Every token it samples is the same."""

    num_pages = 0
    adapters = None
    """It has no memory: an engine's configuration says how many pages it has."""

    def __init__(
        self,
        costs: StepCosts,
        clock: Clock,
        *,
        groups: tuple[KVGroup, ...] = ONE_GROUP,
        state_slots: int = 0,
        seed: int = 1,
    ) -> None:
        """`groups`: of the model's layers. `state_slots`: of a model with recurrent states. `seed`: of small
        random deviations from `costs`."""
        self.spec = _Model(groups)
        self.weights = WeightsIdentity("formula")
        self.num_state_slots = state_slots
        self.sidecars = KINDS
        self._costs = costs
        self._clock = clock
        self._noise = random.Random(seed)
        self.free_at = 0.0
        """When the device has done all that was launched."""

    def prepare(self, plan: StepPlan) -> StepPlan:
        self._clock.time += self._costs.host_s(plan) * self._noise.uniform(*_HOST_NOISE)
        return plan

    def launch(self, plan: StepPlan) -> _Step:
        seconds = self._costs.device_s(plan) * self._noise.uniform(*_DEVICE_NOISE)
        self.free_at = max(self.free_at, self._clock.time) + seconds
        launch = self._costs.launch_s(plan)
        self._clock.time += _LEAD * launch
        sampled = len(plan.sampling())
        answer = StepResult([_TOKEN] * sampled, [None] * sampled)
        return _Step(self._clock, self.free_at, (1 - _LEAD) * launch, answer)

    def refill(self, new: NewWeights) -> None:
        self.weights = WeightsIdentity(str(new.checkpoint), new.version)

    def pages_of_slot(self, slot: int) -> Sequence[int]:
        return ()

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _Step:
    clock: Clock
    ends: float
    launch: float
    """What of it is still to be launched, in the host's seconds."""
    answer: StepResult

    def proceed(self) -> bool:
        if not self.launch:
            return False
        now = min(self.launch, _GRAPH_S)
        self.launch -= now
        self.clock.time += now
        return True

    def proceed_early(self) -> bool:
        return self.proceed()

    def done(self) -> bool:
        return not self.launch and self.ends <= self.clock.time

    def wait(self) -> None:
        self.clock.wait_until(self.ends)

    def result(self) -> StepResult:
        while self.proceed():
            pass
        self.wait()
        return self.answer
