"""Effect of chunk size and batching on TTFT, TPOT, ITL, E2E and peak memory, over the load.

    python -m benchmarks.chunked --quick
    python -m benchmarks.chunked --device cpu --quick
    python -m benchmarks.chunked --chunks 64,256,1024,2048,4096,8192,16384,-1
    python -m benchmarks.chunked --device cpu --chunks 64,256,-1 --rate 1 --scales 0.5,1 --requests 12
    python -m benchmarks.chunked --device cpu --model gpt2 --context 1024 --scales 0 --requests 128 \\
           --input-length 256 --output-length 64 --long 0 --batching mixed,alternating
    python -m benchmarks.chunked --device cuda --model FOLDER --quick --output FILE.json

The real engine on this machine's CPU or GPU (random weights), or on a simulated H200 (`benchmarks.simulate`).
Settings are measured in random order, each `--repeats` times, and repetitions are put together. A scale of 0
sends all requests at once. On a CPU, time is the CPU time of one thread, so that other processes hardly
count; step times are fitted to the measured steps, and the same load is simulated with them. One prompt of
`--memory-prompt` tokens alone tells what chunks cost it, and its peak memory beyond weights and KV pool.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.lib.chunk_plots import Mark, plot_chunks
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.chunk_engines import (
    MeasuredEngine,
    RealEngine,
    Setting,
    SimulatedEngine,
    cpu_config,
    cuda_config,
    with_preset,
)
from benchmarks.lib.engines.simulated_gpu import simulated_config
from benchmarks.lib.engines.step_fit import LinearSteps
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.workload import Work, are_long, make_workload, parse_lengths, with_long_prompts
from benchmarks.lib.model_folder import model_folder
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Percentiles, Summary, figures_table, summarize
from benchmarks.lib.run_log import RunLog
from engine.config import Batching, EngineConfig, Policy
from engine.presets import Preset

_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
_QUICK: Final[dict[str, dict[str, Any]]] = {
    "cuda": {
        "chunks": [512, 2048, 8192, -1],
        "batching": [Batching.MIXED, Batching.PREFILL_FIRST],
        "rate": 10.0,
        "scales": [1.0],
        "requests": 50,
        "long": 0.08,
        "context": 40_960,
        "memory_prompt": 32_768,
        "minutes": 3.5,
    },
    "cpu": {
        "chunks": [64, 256, -1],
        "rate": 1.0,
        "scales": [0.5],
        "requests": 12,
        "input_length": "uniform:32:128",
        "output_length": "8",
        "long": 0.25,
        "long_length": "uniform:300:600",
        "minutes": 3.5,
    },
    "simulator": {"chunks": [64, 512, 2048, 8192, -1], "rate": 10.0, "scales": [1.0], "requests": 50},
}
"""Defaults with --quick, by device."""
_WIDTH: Final = 150
"""Columns of a terminal that hold all of the table."""
_NOT_OF_RUNS: Final = (
    "chunks", "batching", "scales", "repeats", "minutes", "runs", "output", "quick", "width",
)  # fmt: skip
"""Options that do not change what one run measures."""


class Point(NamedTuple):
    """One setting at one load."""

    setting: Setting
    scale: float
    measured: Summary
    ttft_usual: Percentiles
    """Of prompts of --input-length."""
    ttft_long: Percentiles
    """Of prompts of --long-length."""
    predicted: Summary | None


class _Plan(NamedTuple):
    setting: Setting
    scale: float
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.setting} at {self.scale:g}, {self.repeat}"


def main() -> None:
    options = _options()
    console = Console(emoji=False, width=options.width or max(Console().width, _WIDTH))
    found = provenance()
    settings = [Setting(chunk, batching) for chunk in options.chunks for batching in options.batching]
    plans = [_Plan(s, scale, k) for s in settings for scale in options.scales for k in range(options.repeats)]
    random.Random(options.seed).shuffle(plans)
    log = RunLog(options.runs, _common(options))
    left = _measure(options, plans, settings, log, console)
    if left:
        advice = "call it again with the same --runs" if options.runs else "--runs FILE keeps those made"
        console.print(f"{left} of {len(plans)} runs are left after --minutes {options.minutes:g}: {advice}")
    points = _points(options, settings, plans, log)
    title = (
        f"{options.device}, {options.preset.value}: {options.requests} requests, {options.rate:g}/s at load"
        f" 1, {options.repeats} times; {options.input_length} in ({options.long:.0%} {options.long_length}),"
        f" {options.output_length} out; latencies in ms"
    )
    console.print(_table(points, title))
    for chunk, each in sorted(log.alone.items(), key=lambda item: int(item[0])):
        console.print(
            f"{options.memory_prompt} tokens alone in chunks of {chunk}: first token after"
            f" {min(one.ttft_s for one in each):.2f} s, peak memory"
            f" {median(one.peak_bytes for one in each) / (1 << 20):,.0f} MiB"
        )
    if options.output:
        _save(options, points, title, found, log)


def _measure(
    options: argparse.Namespace,
    plans: Sequence[_Plan],
    settings: Sequence[Setting],
    log: RunLog,
    console: Console,
) -> int:
    """Makes the runs that are missing, as far as time allows; returns how many are still."""
    ends = time.monotonic() + options.minutes * 60
    missing = [plan for plan in plans if plan.name not in log]
    unmeasured = [s for s in settings if s.batching is settings[0].batching and str(s.chunk) not in log.alone]
    if not missing and not (unmeasured and options.memory_prompt):
        return 0
    with console.status("loading …") as status:
        engine = _engine(options)
        status.update("warming up …")
        engine.run(settings[0], _load(options, 0.0, seed=999)[:4])
        if options.memory_prompt:
            _measure_alone(engine, unmeasured, options, log)
        for number, plan in enumerate(missing, start=1):
            if time.monotonic() > ends:
                return len(missing) - number + 1
            status.update(f"{number} of {len(missing)}: {plan.setting}, load {plan.scale:g} …")
            before = len(engine.steps) if isinstance(engine, RealEngine) else 0
            records = engine.run(plan.setting, _load(options, plan.scale, options.seed + plan.repeat))
            log.add(plan.name, records, engine.steps[before:] if isinstance(engine, RealEngine) else ())
    return 0


def _measure_alone(
    engine: MeasuredEngine, settings: Sequence[Setting], options: argparse.Namespace, log: RunLog
) -> None:
    [work] = make_workload(
        count=1,
        rate=math.inf,
        input_lengths=parse_lengths(str(options.memory_prompt)),
        output_lengths=parse_lengths("1"),
        seed=options.seed,
    )
    assert not isinstance(work.prompt, str)
    order = [setting for setting in settings for _ in range(options.repeats)]
    random.Random(options.seed).shuffle(order)
    for setting in order:
        alone = engine.alone(setting, work.prompt)
        if alone is not None:
            log.add_alone(str(setting.chunk), alone)


def _engine(options: argparse.Namespace) -> MeasuredEngine:
    return (SimulatedEngine if options.device == "simulator" else RealEngine)(config=_config(options))


def _config(options: argparse.Namespace) -> EngineConfig:
    """Chunks and batching are those of each setting."""
    if options.device == "simulator":
        config = simulated_config()
        config = replace(config, max_model_len=max(config.max_model_len, options.context))
    else:
        make = cpu_config if options.device == "cpu" else cuda_config
        config = make(model_folder(options.model), options.context)
    return with_preset(config, options.preset, options.schedule_policy)


def _load(options: argparse.Namespace, scale: float, seed: int) -> list[Work]:
    """`--long` of the prompts are drawn from --long-length, at random but equally for every setting."""
    return with_long_prompts(
        count=options.requests,
        rate=options.rate * scale if scale else math.inf,
        input_lengths=parse_lengths(options.input_length),
        output_lengths=parse_lengths(options.output_length),
        share=options.long,
        long_lengths=parse_lengths(options.long_length),
        seed=seed,
    )


def _points(
    options: argparse.Namespace, settings: Sequence[Setting], plans: Sequence[_Plan], log: RunLog
) -> list[Point]:
    """Of all settings and loads that have a run."""
    simulated = None
    if options.device == "cpu" and log.steps:
        simulated = SimulatedEngine(LinearSteps.fit(log.steps), _config(options), front_s=0.0)
    points = []
    for setting in settings:
        for scale in options.scales:
            made = [p for p in plans if (p.setting, p.scale) == (setting, scale) and p.name in log]
            if not made:
                continue
            predicted = None
            if simulated is not None:
                loads = [_load(options, scale, options.seed + plan.repeat) for plan in made]
                predicted = _together([simulated.run(setting, load) for load in loads])
            runs = [log.records(plan.name) for plan in made]
            seeds = [options.seed + plan.repeat for plan in made]
            marks = [mark for seed in seeds for mark in are_long(options.requests, options.long, seed)]
            marked = list(zip(marks, (record for run in runs for record in run), strict=True))
            usual, long = (
                Percentiles.of(record.ttft for is_long, record in marked if is_long is wanted)
                for wanted in (False, True)
            )
            points.append(Point(setting, scale, _together(runs), usual, long, predicted))
    return points


def _together(runs: Sequence[Sequence[Record]]) -> Summary:
    """Repetitions as one: the latencies of all, over the sum of their durations."""
    summary = summarize([record for run in runs for record in run])
    seconds = sum(summarize(run).duration_s for run in runs)
    return replace(summary, duration_s=seconds)


def _table(points: Sequence[Point], title: str) -> Table:
    """Where there is a prediction, it follows in a line of its own."""
    table = figures_table(
        title, "chunks of", "load", "TTFT p50", "p90", "p99", "TPOT p50", "p90", "ITL p50", "p99", "E2E p50",
        "tokens/s", "usual TTFT p90", "long TTFT p50",
    )  # fmt: skip
    for point in points:
        load = f"{point.scale:g}" if point.scale else "all at once"
        parts = (f"{t * 1e3:,.0f}" for t in (point.ttft_usual.p90, point.ttft_long.p50))
        table.add_row(str(point.setting), load, *_cells(point.measured), *parts)
        if point.predicted is not None:
            table.add_row("  simulated", "", *_cells(point.predicted), style="dim")
    return table


def _cells(s: Summary) -> list[str]:
    values = (s.ttft.p50, s.ttft.p90, s.ttft.p99, s.tpot.p50, s.tpot.p90, s.itl.p50, s.itl.p99, s.e2e.p50)
    return [*(_ms(value) for value in values), f"{s.total_rate:,.0f}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def _save(
    options: argparse.Namespace, points: Sequence[Point], title: str, found: dict[str, Any], log: RunLog
) -> None:
    content: dict[str, Any] = {
        "title": title,
        "made_with": found,
        "options": _common(options),
        "points": [_as_json(point) for point in points],
    }
    if log.alone:
        content["alone"] = {name: [asdict(one) for one in each] for name, each in log.alone.items()}
    if points and points[0].predicted is not None:
        content["fitted_step_costs_s"] = asdict(LinearSteps.fit(log.steps))
    save_json(options.output, content)
    marks = [Mark(p.setting, p.scale, _spreads(p.measured)) for p in points if p.scale]
    if marks:
        plot_chunks(marks, title, options.output.with_suffix(".png"))


def _as_json(point: Point) -> dict[str, Any]:
    row: dict[str, Any] = {
        "chunk": point.setting.chunk,
        "batching": point.setting.batching.value,
        "load": point.scale,
        "summary": point.measured.as_json(),
        "ttft_usual": asdict(point.ttft_usual),
        "ttft_long": asdict(point.ttft_long),
    }
    return row if point.predicted is None else row | {"simulated": point.predicted.as_json()}


def _spreads(summary: Summary) -> dict[str, Percentiles]:
    return {name: getattr(summary, name) for name in _LATENCIES}


def _common(options: argparse.Namespace) -> dict[str, Any]:
    """Options that say what one run measures."""
    measured = {name: value for name, value in vars(options).items() if name not in _NOT_OF_RUNS}
    return {name: value.value if isinstance(value, Enum) else value for name, value in measured.items()}


def _numbers(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    """`--quick` changes defaults; what is given explicitly stands."""
    parser = make_parser()
    given = parser.parse_args()
    if given.quick:
        parser.set_defaults(**_QUICK[given.device])
    return parser.parse_args()


def make_parser() -> argparse.ArgumentParser:
    parser = command("chunked", __doc__)
    parser.add_argument("--device", choices=["simulator", "cpu", "cuda"], default="simulator")
    parser.add_argument("--quick", action="store_true", help="a few chunk sizes in 4 minutes")
    parser.add_argument("--chunks", type=_numbers(int), default="64,256,1024,2048,8192,16384,-1", metavar="N")
    parser.add_argument(
        "--batching", type=_numbers(Batching), default="mixed", metavar="KIND", help="mixed, prefill-first, …"
    )
    parser.add_argument(
        "--preset", type=Preset, default=Preset.BATON, metavar="NAME", help=", ".join(p.value for p in Preset)
    )
    parser.add_argument(
        "--schedule-policy", type=Policy, metavar="POLICY", help="(default: the preset's; baton: shortest)"
    )
    parser.add_argument("--rate", type=float, default=20.0, metavar="R", help="requests a second at load 1")
    parser.add_argument("--scales", type=_numbers(float), default="0.25,0.5,0.75,1,1.25,1.5", metavar="X")
    parser.add_argument("--requests", type=int, default=200, metavar="N")
    parser.add_argument("--repeats", type=int, default=2, metavar="N")
    parser.add_argument("--input-length", default="lognormal:372:0.8:4096", metavar="LENGTHS")
    parser.add_argument("--output-length", default="lognormal:100:0.7:512", metavar="LENGTHS")
    parser.add_argument(
        "--long", type=float, default=0.05, metavar="SHARE", help="of prompts of --long-length"
    )
    parser.add_argument("--long-length", default="uniform:8192:32768", metavar="LENGTHS")
    parser.add_argument("--model", default="smollm2", help="not for the simulator; a folder for a GPU")
    parser.add_argument(
        "--context",
        type=int,
        default=2048,
        metavar="TOKENS",
        help="of the model; at least 40,960 if simulated",
    )
    parser.add_argument(
        "--memory-prompt", type=int, default=0, metavar="TOKENS", help="measure peak memory with this prompt"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=1e9, metavar="M", help="begin no run after this")
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="FILE",
        help="file of finished runs, from which an interrupted benchmark resumes",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON; the figure goes beside it as .png")
    return parser


if __name__ == "__main__":
    main()
