"""Outcomes of simulated requests, and the shares that met their objectives."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulator.objective import Objective

GOOD = Objective(ttft_s=1.0, tpot_s=0.030, pause_s=0.1)
STRICT = Objective(ttft_s=0.5, tpot_s=0.015)


@dataclass(slots=True)
class SimulatedOutcome:
    """Times in seconds since the run's start, as the client sees them."""

    arrival: float
    prompt_tokens: int
    max_tokens: int
    prefill_worker: int = -1
    decode_worker: int = -1
    cached_tokens: int = 0
    tokens: int = 0
    first: float = 0.0
    second: float = 0.0
    last: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("f"))
    """Between each two tokens."""

    def token(self, at: float) -> None:
        self.tokens += 1
        if self.tokens == 1:
            self.first = at
        else:
            if self.tokens == 2:
                self.second = at
            self.gaps.append(at - self.last)
        self.last = at

    @property
    def is_complete(self) -> bool:
        """False if the simulation ended before the answer did."""
        return self.tokens == self.max_tokens

    @property
    def longest_pause(self) -> float:
        return max(self.gaps, default=0.0)

    @property
    def ttft(self) -> float:
        """Infinite if the simulation ended before the first token."""
        return self.first - self.arrival if self.tokens else math.inf

    @property
    def tpot(self) -> float:
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else 0.0

    def meets(self, objective: Objective) -> bool:
        return self.is_complete and objective.is_met(
            ttft=self.ttft, tpot=self.tpot, longest_pause=self.longest_pause
        )


@dataclass(frozen=True, slots=True)
class Result:
    """One run, or several taken together. Shares are of all requests; times in seconds."""

    requests: int
    good: float
    strict: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    itl_p99: float
    pause_p99: float
    pause_max: float
    local: float
    """Share whose prompt was computed where it decodes."""


def result_of(
    outcomes: Sequence[SimulatedOutcome], good: Objective = GOOD, strict: Objective = STRICT
) -> Result:
    """Raises ValueError if there are none."""
    if not outcomes:
        raise ValueError("no request to sum up")
    count = len(outcomes)
    ttft = np.percentile([o.ttft for o in outcomes], [50, 99])
    tpot = np.percentile([o.tpot for o in outcomes], [50, 99])
    gaps = np.concatenate([o.gaps for o in outcomes])
    pauses = [o.longest_pause for o in outcomes]
    return Result(
        requests=count,
        good=sum(o.meets(good) for o in outcomes) / count,
        strict=sum(o.meets(strict) for o in outcomes) / count,
        ttft_p50=float(ttft[0]),
        ttft_p99=float(ttft[1]),
        tpot_p50=float(tpot[0]),
        tpot_p99=float(tpot[1]),
        itl_p99=float(np.percentile(gaps, 99)) if gaps.size else 0.0,
        pause_p99=float(np.percentile(pauses, 99)),
        pause_max=max(pauses),
        local=sum(o.prefill_worker == o.decode_worker for o in outcomes) / count,
    )
