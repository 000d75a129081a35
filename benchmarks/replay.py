"""Replay measured runs on the simulator: the same requests, settings and warm-up, measured and simulated.

    python -m benchmarks.replay                                    # results/modes-h200-x2.json
    python -m benchmarks.replay FILE.json --seconds 60 --input-length ... --output-length ...

FILE is a result of `python -m benchmarks.modes --device cuda` with Llama-3.1-8B's shape on H200s. Modes run
with the flags that the file holds. Near saturation a share depends on the draw, so simulated shares can be
compared with measured ones only for the same draw: --seconds, --warm-up and lengths must be those of the
measurement, and a draw with another number of prompt tokens than was measured is an error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command
from benchmarks.lib.load.workload import Lengths, Work, make_workload, parse_lengths
from benchmarks.lib.outcomes import Run
from benchmarks.lib.report import figures_table
from benchmarks.modes import WARM_UP_SEED
from router.config.choices import Mode
from router.placement import Targets
from simulator.deployment import Deployment
from simulator.objective import Objective
from simulator.outcome import SimulatedOutcome
from simulator.traffic import Arrival

_RESULTS: Final = Path(__file__).parent / "results"
_PAUSE_S: Final = 60.0
"""Between the warm-up and the run: all queues are empty by then."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one run; times in seconds."""

    good: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float


@dataclass(frozen=True, slots=True)
class Replayed:
    mode: str
    rate: float
    seed: int
    offered: float
    """Requests a second that came."""
    measured: Figures
    simulated: Figures


def main() -> None:
    options = make_parser().parse_args()
    content = json.loads(options.file.read_text())
    lengths = options.input_length, options.output_length
    objective = Objective(ttft_s=options.ttft, tpot_s=options.tpot)
    runs = [run for run in map(Run.from_json, content["points"]) if run.mode in options.modes]
    replayed = []
    for run in runs:
        deployment = deployment_of(run.mode, content["flags"][run.mode], objective)
        warm_up = _draw(options.warm_up, max(r.rate for r in runs), lengths, WARM_UP_SEED)
        load = _draw(round(run.rate * options.seconds), run.rate, lengths, run.seed)
        replayed.append(replay(run, deployment, warm_up, load, objective))
    title = f"measured → simulated, the same requests: {options.file.name}, {content['title']}"
    Console().print(_table(replayed, title))


def deployment_of(mode: str, flags: Sequence[str], objective: Objective) -> Deployment:
    """The simulated workers of a server that was started with these flags."""
    given = {flag: value for flag, value in pairwise(flags) if flag.startswith("--")}
    chunk, step = given.get("--prefill-chunked-prefill-size"), given.get("--itl-target-ms")
    is_mixed = mode == Mode.MIXED.value
    return Deployment(
        mode=Mode(mode),
        prefill=int(given.get("--prefill-workers", 0)),
        decode=int(given.get("--decode-workers", 1)),
        targets=Targets(objective.ttft_s or 1.0, objective.tpot_s or 0.03),
        chunk_tokens=int(chunk) if chunk else None,
        step_target_s=float(step) / 1e3 if step and is_mixed else None,
    )


def replay(
    run: Run, deployment: Deployment, warm_up: Sequence[Work], load: Sequence[Work], objective: Objective
) -> Replayed:
    """Raises ValueError if `load` is not what was measured."""
    if (tokens := sum(len(work.prompt) for work in load)) != run.summary.prompt_tokens:
        raise ValueError(
            f"{run.mode} at {run.rate:g}/s, seed {run.seed}: {run.summary.prompt_tokens} prompt tokens were"
            f" measured, this draw has {tokens}; give the --seconds and lengths of the measurement"
        )
    begin = max((work.arrival_s for work in warm_up), default=0.0) + _PAUSE_S
    outcomes = deployment.simulation().run([*_arrivals(warm_up, 0.0), *_arrivals(load, begin)])
    summary = run.summary
    measured = Figures(
        run.share_good,
        summary.ttft.p50,
        summary.ttft.p90,
        summary.ttft.p99,
        summary.tpot.p50,
        summary.tpot.p99,
    )
    simulated = _figures(outcomes[len(warm_up) :], objective)
    return Replayed(run.mode, run.rate, run.seed, run.offered, measured, simulated)


def _figures(outcomes: Sequence[SimulatedOutcome], objective: Objective) -> Figures:
    good = sum(outcome.meets(objective) for outcome in outcomes) / len(outcomes)
    ttft = np.percentile([outcome.ttft for outcome in outcomes], [50, 90, 99])
    tpot = np.percentile([outcome.tpot for outcome in outcomes], [50, 99])
    return Figures(good, *map(float, ttft), *map(float, tpot))


def _draw(count: int, rate: float, lengths: tuple[Lengths, Lengths], seed: int) -> list[Work]:
    return make_workload(
        count=count, rate=rate, input_lengths=lengths[0], output_lengths=lengths[1], seed=seed
    )


def _arrivals(load: Iterable[Work], begin: float) -> Iterator[Arrival]:
    for work in load:
        yield Arrival(begin + work.arrival_s, len(work.prompt), work.max_tokens)


def _table(replayed: Sequence[Replayed], title: str) -> Table:
    table = figures_table(
        title, "mode", "arrivals/s", "good, %", "TTFT p50, ms", "p90", "p99", "TPOT p50, ms", "p99"
    )
    for (mode, _), group in groupby(replayed, key=lambda each: (each.mode, each.rate)):
        for each in (runs := list(group)):
            table.add_row(f"{mode}, seed {each.seed}", f"{each.offered:.1f}", *_cells([each]))
        table.add_row(mode, f"{fmean(run.offered for run in runs):.1f}", *_cells(runs), style="bold")
    return table


def _cells(runs: Sequence[Replayed]) -> list[str]:
    """Means over the runs."""
    forms: Mapping[str, tuple[float, str]] = {
        "good": (100, ".0f"),
        "ttft_p50": (1e3, ",.0f"),
        "ttft_p90": (1e3, ",.0f"),
        "ttft_p99": (1e3, ",.0f"),
        "tpot_p50": (1e3, ".1f"),
        "tpot_p99": (1e3, ".1f"),
    }

    def mean(figures: Iterable[Figures], name: str) -> float:
        return fmean(getattr(each, name) for each in figures)

    return [
        f"{scale * mean((run.measured for run in runs), name):{form}} →"
        f" {scale * mean((run.simulated for run in runs), name):{form}}"
        for name, (scale, form) in forms.items()
    ]


def make_parser() -> argparse.ArgumentParser:
    parser = command("replay", __doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path, nargs="?", default=_RESULTS / "modes-h200-x2.json")
    parser.add_argument("--modes", type=lambda text: text.split(","), default="mixed,disagg,adaptive")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of a run (20)")
    parser.add_argument("--warm-up", type=int, default=64, metavar="N", help="requests (64)")
    _lengths(parser, "--input-length", "lognormal:2048:0.8:16384")
    _lengths(parser, "--output-length", "uniform:128:512")
    parser.add_argument("--ttft", type=float, default=0.5, metavar="SECONDS", help="of a good answer (0.5)")
    parser.add_argument("--tpot", type=float, default=0.015, metavar="SECONDS", help="the same (0.015)")
    return parser


def _lengths(parser: argparse.ArgumentParser, flag: str, default: str) -> None:
    options: dict[str, Any] = {"type": parse_lengths, "default": default, "metavar": "LENGTHS"}
    parser.add_argument(flag, **options, help=f"({default})")


if __name__ == "__main__":
    main()
