"""Targets and workloads of the frontier search. A workload draws the same requests at every rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from router.placement import Targets
from simulator.lengths import Lengths, LogNormal, Uniform
from simulator.objective import Objective
from simulator.traffic import Arrival

_Choose: TypeAlias = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Regime:
    """Targets that a good answer meets, both of them."""

    name: str
    ttft_s: float
    tpot_s: float

    @property
    def targets(self) -> Targets:
        return Targets(self.ttft_s, self.tpot_s)

    @property
    def objective(self) -> Objective:
        return Objective(ttft_s=self.ttft_s, tpot_s=self.tpot_s)


def scaled(regime: Regime, factor: float) -> Regime:
    """All targets times `factor`, for slower machines."""
    return Regime(regime.name, factor * regime.ttft_s, factor * regime.tpot_s)


REGIMES: Final = {
    regime.name: regime
    for regime in (
        Regime("tight TTFT", 0.4, 0.040),
        Regime("tight TPOT", 2.0, 0.010),
        Regime("balanced", 0.5, 0.015),
    )
}


def _by_chance(_: np.ndarray, chance: np.ndarray, count: int) -> np.ndarray:
    return np.asarray(chance * count, dtype=np.int64)


def _by_time(place: np.ndarray, chance: np.ndarray, count: int) -> np.ndarray:
    """Shifts gradually from the first mix to the last."""
    position = place * (count - 1)
    later: np.ndarray = np.floor(position) + (chance < position % 1)
    return np.asarray(np.minimum(later, count - 1), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Workload:
    """Poisson arrivals; each request is drawn from one of `mixes` (prompt and answer lengths)."""

    name: str
    mixes: tuple[tuple[Lengths, Lengths], ...]
    choose: _Choose = _by_chance

    def arrivals(
        self, rate: float, seconds: float, seed: int, *, warm_up: float = 0.0, scale: float = 1.0
    ) -> list[Arrival]:
        """Requests during `seconds` at `rate` per second, after a warm-up at the same rate.

        The n-th request of a seed has the same lengths at every rate (unless its mix depends on the time),
        and arrives proportionally earlier, so that results differ only by the rate. `scale` shortens all
        lengths.
        """
        streams = np.random.SeedSequence(seed).spawn(2 + 2 * len(self.mixes))
        gaps, chances, *lengths = (np.random.default_rng(stream) for stream in streams)
        count = round(2 * rate * (warm_up + seconds)) + 50
        times = np.cumsum(gaps.exponential(1.0, count)) / rate
        chosen = self.choose(
            np.clip((times - warm_up) / seconds, 0.0, 1.0), chances.random(count), len(self.mixes)
        )
        drawn = [
            (inputs.draw(lengths[2 * i], count), outputs.draw(lengths[2 * i + 1], count))
            for i, (inputs, outputs) in enumerate(self.mixes)
        ]
        return [
            Arrival(
                float(at), max(1, round(scale * drawn[mix][0][n])), max(1, round(scale * drawn[mix][1][n]))
            )
            for n, (at, mix) in enumerate(zip(times, chosen, strict=True))
            if at < warm_up + seconds
        ]


_SUMMARY: Final = (LogNormal(4096, 0.7, 16_384), Uniform(32, 128))
_TABLE: Final = (LogNormal(2048, 0.8, 16_384), Uniform(128, 512))
_STORY: Final = (LogNormal(256, 0.8, 2048), Uniform(512, 1024))

WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload("short in, long out", (_STORY,)),
        Workload("long in, short out", (_SUMMARY,)),
        Workload("mixed", (_SUMMARY, _STORY)),
        Workload("shifting", (_SUMMARY, _TABLE, _STORY), _by_time),
    )
}
