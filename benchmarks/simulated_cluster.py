"""Compare placements on a simulated cluster.

    python -m benchmarks.simulate --cluster --rates 8,10,12,14,16
    python -m benchmarks.simulate --cluster --prefill 2 --decode 2 --load shifting --rates 20
    python -m benchmarks.simulate --cluster --trace mooncake.jsonl --prefill 4 --decode 4

strict: TTFT and TPOT within --ttft-ms and --itl-ms; good: TTFT within 1 s, TPOT within 30 ms, no pause above
100 ms. Each seed is another sample of the same load; shares are means over seeds, with minimum and maximum.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command
from benchmarks.lib.report import figures_table
from router.config.choices import Mode
from router.placement import Targets
from simulator.deployment import Deployment
from simulator.lengths import LogNormal, Uniform
from simulator.objective import Objective
from simulator.outcome import GOOD, SimulatedOutcome, result_of
from simulator.traffic import Arrival, bursts, chats, day, merged, mooncake, poisson

_TABLE: Final = (LogNormal(2048, 0.8, 16_384), Uniform(128, 512))
_SUMMARY: Final = (LogNormal(4096, 0.7, 16_384), Uniform(32, 128))
_STORY: Final = (LogNormal(256, 0.8, 2048), Uniform(512, 1024))
_CHAT: Final = (LogNormal(512, 0.8, 4096), LogNormal(256, 0.7, 1024))


def _mixed(rate: float, seconds: float, seed: int) -> list[Arrival]:
    return merged(
        poisson(rate / 2, seconds, *_SUMMARY, seed=2 * seed),
        poisson(rate / 2, seconds, *_STORY, seed=2 * seed + 1),
    )


LOADS: Final[dict[str, Callable[[float, float, int], list[Arrival]]]] = {
    "table": lambda rate, seconds, seed: poisson(rate, seconds, *_TABLE, seed=seed),
    "long-in": lambda rate, seconds, seed: poisson(rate, seconds, *_SUMMARY, seed=seed),
    "long-out": lambda rate, seconds, seed: poisson(rate, seconds, *_STORY, seed=seed),
    "both": _mixed,
    "shifting": lambda rate, seconds, seed: day(rate, seconds, (_SUMMARY, _TABLE, _STORY), seed),
    "bursts": lambda rate, seconds, seed: bursts(rate, seconds, *_TABLE, seed=seed),
    "chats": lambda rate, seconds, seed: chats(rate, seconds, LogNormal(128, 0.8, 2048), _CHAT[1], seed),
}
"""Functions (requests a second, seconds, seed) -> arrivals, by name."""


def main(argv: Sequence[str] | None = None) -> None:
    options = make_parser().parse_args(argv)
    console = Console(width=150)
    targets = Targets(options.ttft_ms / 1e3, options.itl_ms / 1e3)
    for rate in options.rates if options.trace is None else [0.0]:
        load = f"{options.load}, {rate:g} requests/s" if options.trace is None else options.trace.name
        table = _table(f"simulated; {load}, {options.seconds:g} s x {options.seeds} seeds")
        for deployment in _deployments(options, targets):
            began = time.perf_counter()
            runs = [deployment.simulation().run(arrivals) for arrivals in _arrivals(options, rate)]
            _add(table, deployment.name, runs, targets, time.perf_counter() - began)
        console.print(table)


def _arrivals(options: argparse.Namespace, rate: float) -> list[list[Arrival]]:
    if options.trace is not None:
        return [mooncake(options.trace, speed=options.speed, most=options.most)]
    return [
        LOADS[options.load](rate, options.seconds, options.first_seed + seed) for seed in range(options.seeds)
    ]


def _deployments(options: argparse.Namespace, targets: Targets) -> list[Deployment]:
    """Fixed modes, mixed also with steps that suit the targets, then adaptive."""
    cached = options.load == "chats" or options.trace is not None
    total = options.prefill + options.decode
    splits = [(options.prefill, options.decode)]
    if options.splits:
        splits = [(p, total - p) for p in range(1, total)]
    mixed = [
        _deployment(Mode.MIXED, splits[0], targets, cached, step=s) for s in (None, 0.95 * targets.tpot_s)
    ]
    disagg = [
        _deployment(Mode.DISAGG, split, targets, cached, chunk=options.prefill_chunk) for split in splits
    ]
    adaptive = _deployment(Mode.ADAPTIVE, (options.prefill, options.decode), targets, cached)
    pauses = [replace(adaptive, pause_target_s=pause / 1e3) for pause in options.pause_ms]
    every = (*mixed, *disagg, adaptive, *pauses)
    return [found for found in every if found.mode.value in options.modes]


def _deployment(
    mode: Mode,
    split: tuple[int, int],
    targets: Targets,
    cached: bool,
    *,
    chunk: int | None = None,
    step: float | None = None,
) -> Deployment:
    return Deployment(
        mode=mode,
        prefill=split[0],
        decode=split[1],
        targets=targets,
        chunk_tokens=chunk,
        step_target_s=step,
        radix_cache=cached,
    )


def _table(title: str) -> Table:
    return figures_table(
        title, "", "strict %", "low–high", "good %", "low–high", "TTFT p50, ms", "p99", "TPOT p50, ms", "p99",
        "ITL p99", "pause p99", "max", "local %", "sim s / s",
    )  # fmt: skip


def _add(
    table: Table, name: str, runs: list[list[SimulatedOutcome]], targets: Targets, seconds: float
) -> None:
    strict = Objective(ttft_s=targets.ttft_s, tpot_s=targets.tpot_s)
    each = [result_of(run, GOOD, strict) for run in runs]
    together = result_of([outcome for run in runs for outcome in run], GOOD, strict)
    simulated = sum(max(outcome.last for outcome in run) for run in runs)
    table.add_row(
        name,
        f"{100 * together.strict:.0f}",
        f"{100 * min(r.strict for r in each):.0f}–{100 * max(r.strict for r in each):.0f}",
        f"{100 * together.good:.0f}",
        f"{100 * min(r.good for r in each):.0f}–{100 * max(r.good for r in each):.0f}",
        *(f"{1e3 * t:,.0f}" for t in (together.ttft_p50, together.ttft_p99)),
        *(f"{1e3 * t:.1f}" for t in (together.tpot_p50, together.tpot_p99)),
        *(f"{1e3 * t:.0f}" for t in (together.itl_p99, together.pause_p99, together.pause_max)),
        f"{100 * together.local:.0f}",
        f"{simulated / seconds:,.0f}",
    )


def _rates(text: str) -> list[float]:
    return [float(rate) for rate in text.split(",") if rate]


def make_parser() -> argparse.ArgumentParser:
    parser = command("simulate --cluster", __doc__)
    parser.add_argument("--prefill", type=int, default=1, metavar="N", help="workers that prefer to prefill")
    parser.add_argument("--decode", type=int, default=1, metavar="N", help="workers that prefer to decode")
    parser.add_argument("--splits", action="store_true", help="disaggregate in every ratio")
    parser.add_argument("--modes", type=lambda text: text.split(","), default="mixed,disagg,adaptive")
    parser.add_argument("--rates", type=_rates, default="8,10,12,14,16", metavar="R,…")
    parser.add_argument("--seconds", type=float, default=40.0, metavar="S", help="seconds of arrivals")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N")
    parser.add_argument("--load", choices=sorted(LOADS), default="table")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="in Mooncake's format, in place of --load")
    parser.add_argument("--speed", type=float, default=1.0, help="speed-up of a replayed trace")
    parser.add_argument("--most", type=int, metavar="N", help="requests of a trace")
    parser.add_argument("--ttft-ms", type=float, default=500.0, metavar="MS")
    parser.add_argument("--itl-ms", type=float, default=15.0, metavar="MS")
    parser.add_argument(
        "--pause-ms", type=_rates, default="", metavar="MS,…", help="adaptive also with these pause targets"
    )
    parser.add_argument(
        "--prefill-chunk", type=int, metavar="TOKENS", help="step budget with disagg; -1: whole prompts"
    )
    return parser
