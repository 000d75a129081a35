"""Derives one recommendation from predictions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.config.choices import Mode
from router.placement import Targets
from simulator.planner.prediction import Prediction

_EQUAL: Final = 0.01
"""Shares of good answers that differ by less count as equal: this is the error of the simulation."""
_SIMPLICITY: Final = {Mode.MIXED: 0, Mode.DISAGG: 1, Mode.ADAPTIVE: 2}
"""Among equal predictions the simplest is recommended: without handoffs, then with fixed roles."""


@dataclass(frozen=True, slots=True)
class Advice:
    best: Prediction
    """The recommended candidate; the nearest to the targets if none meets them."""
    meets: bool
    """Whether it reaches the wanted share of good answers."""
    text: str
    """One line."""


def ranked(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Best first: the recommended one, then by share of good answers, then those that were only screened."""
    full = [p for p in predictions if p.is_full]
    top = max(p.good for p in full)
    equal = [p for p in full if p.good >= top - _EQUAL]
    best = min(equal, key=_preference)
    others = sorted((p for p in predictions if p is not best), key=lambda p: (not p.is_full, -p.good))
    return [best, *others]


def advise(predictions: Sequence[Prediction], targets: Targets, wanted: float) -> Advice:
    """`wanted`: share of good answers. Raises ValueError if no prediction is of the full load."""
    if not any(p.is_full for p in predictions):
        raise ValueError("no prediction of the full load")
    best, *others = ranked(predictions)
    if best.good < wanted:
        return Advice(best, False, _nothing(best, targets, wanted))
    name = _name(best)
    match best.candidate.mode:
        case Mode.MIXED:
            text = f"Do not disaggregate: {name} keeps {best.good:.1%} good{_against(others, Mode.DISAGG)}."
        case Mode.DISAGG:
            text = f"Disaggregate: {name} keeps {best.good:.1%} good{_against(others, Mode.MIXED)}."
        case Mode.ADAPTIVE:
            rivals = _against(others, Mode.MIXED) + _against(others, Mode.DISAGG)
            text = f"Let the router place each request: {name} keeps {best.good:.1%} good{rivals}."
    return Advice(best, True, text)


def _preference(prediction: Prediction) -> tuple[int, int, bool, float]:
    candidate = prediction.candidate
    simplicity = _SIMPLICITY[candidate.mode]
    return simplicity, candidate.ranks, candidate.step_s is not None, -prediction.good


def _name(prediction: Prediction) -> str:
    candidate = prediction.candidate
    ranks = f" with tensor parallelism {candidate.ranks}" if candidate.ranks > 1 else ""
    return f"{candidate.mode.value} {candidate.split}{ranks}"


def _against(others: Sequence[Prediction], mode: Mode) -> str:
    rivals = [p for p in others if p.candidate.mode is mode]
    if not rivals:
        return ""
    rival = max(rivals, key=lambda p: (p.is_full, p.good))
    return f"; {_name(rival)} {rival.good:.1%}"


def _nothing(best: Prediction, targets: Targets, wanted: float) -> str:
    if best.ttft_misses >= best.tpot_misses:
        missed = f"--ttft-target-ms {1e3 * targets.ttft_s:g}", best.ttft_misses
    else:
        missed = f"--itl-target-ms {1e3 * targets.tpot_s:g}", best.tpot_misses
    return (
        f"Nothing keeps {wanted:.0%} good: {_name(best)} comes nearest with {best.good:.1%};"
        f" {missed[1]:.0%} miss {missed[0]}. Use more GPUs, relax that target, or send fewer requests."
    )
