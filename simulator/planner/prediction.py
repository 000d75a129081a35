"""Predictions of the simulator for each candidate. Candidates that screen badly are not simulated in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from router.config.choices import Mode
from router.placement import Targets
from simulator.objective import Objective
from simulator.outcome import SimulatedOutcome
from simulator.planner.candidates import Candidate
from simulator.planner.load import LoadDraws
from simulator.traffic import last_deadline

_FINALISTS: Final = 6
_OF_EACH_MODE: Final = 2


@dataclass(frozen=True, slots=True)
class Prediction:
    """Shares are of the requests that count; times in seconds, infinite for what was not answered in time."""

    candidate: Candidate
    good: float
    goodput: float
    """Good answers per second."""
    ttft_misses: float
    tpot_misses: float
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    is_full: bool
    """False: simulated for the first part of the load only."""


def predictions(
    candidates: Sequence[Candidate],
    load: LoadDraws,
    targets: Targets,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Prediction]:
    """One prediction per candidate, in order. `progress(done, total)` counts simulations."""
    screened: list[Prediction] = []
    total = len(candidates) + min(len(candidates), _FINALISTS + _OF_EACH_MODE * len(Mode))
    part = load.shortened()
    for candidate in candidates:
        screened.append(predict(candidate, part, targets, is_full=part is load))
        progress(len(screened), total)
    if part is load:
        return screened
    finalists = _finalists(screened)
    done = len(screened)
    results = []
    for first in screened:
        if first.candidate not in finalists:
            results.append(first)
            continue
        results.append(predict(first.candidate, load, targets, is_full=True))
        done += 1
        progress(done, len(screened) + len(finalists))
    return results


def predict(candidate: Candidate, load: LoadDraws, targets: Targets, *, is_full: bool) -> Prediction:
    outcomes: list[SimulatedOutcome] = []
    for arrivals in load.draws:
        simulation = candidate.deployment.simulation()
        outcomes += simulation.run(arrivals, until=last_deadline(arrivals, targets))
    counted = [o for o in outcomes if o.arrival >= load.since]
    objective = Objective(ttft_s=targets.ttft_s, tpot_s=targets.tpot_s)
    count = max(len(counted), 1)
    good = sum(o.meets(objective) for o in counted) / count
    ttfts = sorted(o.ttft for o in counted)
    tpots = sorted(o.tpot if o.is_complete else math.inf for o in counted)
    return Prediction(
        candidate=candidate,
        good=good,
        goodput=good * load.rate,
        ttft_misses=sum(t > targets.ttft_s for t in ttfts) / count,
        tpot_misses=sum(t > targets.tpot_s for t in tpots) / count,
        ttft_p50=_percentile(ttfts, 0.5),
        ttft_p99=_percentile(ttfts, 0.99),
        tpot_p50=_percentile(tpots, 0.5),
        tpot_p99=_percentile(tpots, 0.99),
        is_full=is_full,
    )


def _finalists(screened: Sequence[Prediction]) -> set[Candidate]:
    """The best candidates overall and of each mode, for the comparison of modes."""
    ranked = sorted(screened, key=lambda p: p.good, reverse=True)
    chosen = {p.candidate for p in ranked[:_FINALISTS]}
    for mode in Mode:
        own = [p.candidate for p in ranked if p.candidate.mode is mode]
        chosen |= set(own[:_OF_EACH_MODE])
    return chosen


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The percentile without interpolation, since `ordered` may contain infinities."""
    return ordered[min(len(ordered) - 1, math.ceil(share * (len(ordered) - 1)))] if ordered else 0.0
