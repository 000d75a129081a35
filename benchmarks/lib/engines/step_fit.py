"""A linear model of step times, fitted to measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from engine.core.events import StepMeasured
from engine.core.plan import StepPlan
from router.placement import EVERYTHING, Reach


@dataclass(frozen=True, slots=True)
class LinearSteps:
    """Seconds. Implements `simulator.device.StepCosts`."""

    step: float
    """Of every step."""
    prompt: float
    """Of a prompt token."""
    pair: float
    """Of a prompt token and one that it attends to."""
    decode: float
    """Of a decode."""
    context: float
    """Of one token of a decode's context."""

    @classmethod
    def fit(cls, steps: Sequence[StepMeasured]) -> LinearSteps:
        """Least squares of relative errors, without negative coefficients."""
        features = np.array([_features(step) for step in steps])
        seconds = np.array([step.seconds for step in steps])
        weighted = features / seconds[:, None]
        used = list(range(features.shape[1]))
        while True:
            found, *_ = np.linalg.lstsq(weighted[:, used], np.ones(len(steps)), rcond=None)
            if (found >= 0).all():
                break
            used.pop(int(np.argmin(found)))
        coefficients = np.zeros(features.shape[1])
        coefficients[used] = found
        return cls(*coefficients.tolist())

    @property
    def reach(self) -> Reach:
        """The measured engines have no windows."""
        return EVERYTHING

    def device_s(self, plan: StepPlan) -> float:
        return float(np.dot(_features(StepMeasured.of(plan, 0.0)), astuple(self)))

    def host_s(self, plan: StepPlan) -> float:
        return 0.0  # in the measured steps

    def launch_s(self, plan: StepPlan) -> float:
        return 0.0


def _features(step: StepMeasured) -> tuple[float, ...]:
    """In the order of the coefficients."""
    return 1.0, step.prompt_tokens, step.attention_pairs, step.decodes, step.context_tokens
