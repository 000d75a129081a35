"""Shares of good answers on the simulated cluster, for every variant of a mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.frontier.cells import Regime, Workload
from benchmarks.frontier.search import ShareAt
from router.config.choices import Mode
from simulator.deployment import TUNED_STEP_SHARE, Deployment
from simulator.traffic import Arrival, last_deadline


def simulated_variants(
    mode: Mode,
    workers: int,
    regime: Regime,
    workload: Workload,
    *,
    seconds: float,
    warm_up: float,
    seeds: Sequence[int],
) -> dict[str, ShareAt]:
    """Variants by name. Mixed has two step targets, disagg every split."""

    def share_of(deployment: Deployment) -> ShareAt:
        def share_at(rate: float) -> float:
            draws = [workload.arrivals(rate, seconds, seed, warm_up=warm_up) for seed in seeds]
            return good_share(deployment, draws, regime, since=warm_up)

        return share_at

    return {deployment.name: share_of(deployment) for deployment in _deployments(mode, workers, regime)}


def good_share(
    deployment: Deployment, draws: Sequence[Sequence[Arrival]], regime: Regime, *, since: float = 0.0
) -> float:
    """Share of good answers among requests of all draws that arrive after `since` seconds."""
    good = total = 0
    for arrivals in draws:
        if not arrivals:
            continue
        outcomes = deployment.simulation().run(arrivals, until=last_deadline(arrivals, regime.targets))
        outcomes = [outcome for outcome in outcomes if outcome.arrival >= since]
        good += sum(o.meets(regime.objective) for o in outcomes)
        total += len(outcomes)
    return good / total if total else 0.0


def _deployments(mode: Mode, workers: int, regime: Regime) -> list[Deployment]:
    targets = regime.targets
    half = max(1, workers // 2)
    even = Deployment(mode=mode, prefill=half, decode=workers - half, targets=targets)
    match mode:
        case Mode.MIXED:
            return [even, replace(even, step_target_s=TUNED_STEP_SHARE * regime.tpot_s)]
        case Mode.DISAGG:
            splits = sorted(range(1, workers), key=lambda prefill: abs(prefill - half))
            return [
                Deployment(mode=mode, prefill=prefill, decode=workers - prefill, targets=targets)
                for prefill in splits
            ]
        case Mode.ADAPTIVE:
            return [even]
