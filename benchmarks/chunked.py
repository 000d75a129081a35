"""TTFT, TPOT, ITL and E2E over the load, by chunk size and batching.

    python -m benchmarks.chunked --on simulator --chunks 64,256,1024,2048,4096,8192,16384,-1
    python -m benchmarks.chunked --on cpu --chunks 64,256,-1 --rate 1 --scales 0.5,1 --requests 12
    python -m benchmarks.chunked --on cpu --model gpt2 --context 1024 --scales 0 --requests 128 \\
           --input-length 256 --output-length 64 --long 0 --batching mixed,alternating

Runs the real engine on this machine's CPU, or on a simulated H200 (`benchmarks.simulate`). Settings are
measured in random order, each `--repeats` times, and repetitions are pooled. A scale of 0 sends all requests
at once.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.lib.chunk_plots import Mark, plot_chunks
from benchmarks.lib.client import Record
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Percentiles, Summary, summarize
from benchmarks.lib.workload import Work, make_workload, parse_lengths
from benchmarks.simulate import Costs, simulate, simulated_config
from engine.config import Batching, EngineConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.engine import Engine
from engine.executor.runner import ModelRunner
from engine.loader.checkpoint import resolve

__all__ = ["Setting", "drive", "scheduler_of"]

_LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True, slots=True)
class Setting:
    chunk: int
    """-1: whole prompts."""
    batching: Batching

    def __str__(self) -> str:
        size = "whole" if self.chunk == -1 else str(self.chunk)
        return size if self.batching is Batching.MIXED else f"{size}, {self.batching.value}"


def scheduler_of(setting: Setting, base: SchedulerConfig) -> SchedulerConfig:
    """Without an ITL target, which would choose the chunks itself."""
    chunk = None if setting.chunk == -1 else setting.chunk
    return replace(
        base,
        chunk_budget=chunk,
        chunked_prefill=chunk is not None,
        batching=setting.batching,
        itl_target_s=None,
    )


def drive(engine: Engine, load: Sequence[Work]) -> list[Record]:
    """Send the load to an engine at its times of arrival; one record a request."""
    began = time.monotonic()
    records = [Record(sent=began + work.arrival_s, prompt_tokens=len(work.prompt)) for work in load]
    coming = 0
    while coming < len(load) or engine.has_work:
        while coming < len(load) and records[coming].sent <= time.monotonic():
            sampling = SamplingParams(max_tokens=load[coming].max_tokens, ignore_eos=True)
            engine.submit(Request(coming, load[coming].prompt, sampling))  # type: ignore[arg-type]
            coming += 1
        if not engine.has_work:
            time.sleep(max(records[coming].sent - time.monotonic(), 0.0))
            continue
        for token in engine.step().tokens:
            now = time.monotonic()
            record = records[token.request.id]
            record.arrivals.append(now)
            record.output_tokens += 1
            record.ended = now
        engine.proceed()
    return records


Measure = Callable[[Setting, Sequence[Work]], list[Record]]


def _on_cpu(options: argparse.Namespace) -> Measure:
    """One model for all settings; each has its own engine and cache."""
    largest = max(options.context, *options.chunks)
    base = SchedulerConfig(chunk_budget=largest, max_running_requests=64, itl_target_s=None)
    config = EngineConfig(
        model_path=resolve(options.model).path,
        page_size=16,
        num_pages=64 * options.context // 16 // 4,
        max_model_len=options.context,
        scheduler=base,
        radix_cache=False,
    )
    runner = ModelRunner(config)

    def measure(setting: Setting, load: Sequence[Work]) -> list[Record]:
        own = replace(config, scheduler=scheduler_of(setting, base))
        return drive(Engine(own, runner=runner), load)

    return measure


def _on_simulator(_: argparse.Namespace) -> Measure:
    def measure(setting: Setting, load: Sequence[Work]) -> list[Record]:
        config = simulated_config()
        config = replace(config, scheduler=scheduler_of(setting, config.scheduler))
        return simulate(load, None, Costs(), config=config)

    return measure


_MEASURES: Final = {"cpu": _on_cpu, "simulator": _on_simulator}


def _load(options: argparse.Namespace, scale: float, seed: int) -> list[Work]:
    """`--long` of the prompts are drawn from --long-length, at random but equally for every setting."""
    rate = options.rate * scale if scale else math.inf
    usual, long = (
        make_workload(
            count=options.requests,
            rate=rate,
            input_lengths=parse_lengths(lengths),
            output_lengths=parse_lengths(options.output_length),
            seed=seed,
        )
        for lengths in (options.input_length, options.long_length)
    )
    rng = random.Random(seed)
    pairs = zip(usual, long, strict=True)
    return [
        replace(work, prompt=other.prompt) if rng.random() < options.long else work for work, other in pairs
    ]


def main() -> None:
    options = _parser().parse_args()
    console = Console(emoji=False)
    found = provenance()
    measure = _MEASURES[options.on](options)
    settings = [Setting(chunk, batching) for chunk in options.chunks for batching in options.batching]
    runs = [(s, scale, k) for s in settings for scale in options.scales for k in range(options.repeats)]
    random.Random(options.seed).shuffle(runs)
    records: dict[tuple[Setting, float], list[list[Record]]] = {}
    with console.status("") as status:
        if options.on == "cpu":
            status.update("warming up …")
            measure(settings[0], _load(options, 0.0, seed=-1 % 1000)[:2])
        for number, (setting, scale, repeat) in enumerate(runs, start=1):
            status.update(f"{number} of {len(runs)}: {setting}, load {scale:g} …")
            load = _load(options, scale, options.seed + repeat)
            records.setdefault((setting, scale), []).append(measure(setting, load))
    points = [
        (setting, scale, _together(records[setting, scale]))
        for setting in settings
        for scale in options.scales
    ]
    title = (
        f"{options.on}: {options.requests} requests, {options.rate:g}/s at load 1, {options.repeats} times;"
        f" {options.input_length} in ({options.long:.0%} {options.long_length}), {options.output_length} out"
    )
    if found["busy"] and options.on == "cpu":  # simulated time does not depend on it
        title += "; the machine was busy"
    console.print(_table(points, title))
    if options.output:
        _save(options, points, title, found)


def _together(runs: Sequence[Sequence[Record]]) -> Summary:
    """Repetitions as one: the latencies of all, over the sum of their durations."""
    summary = summarize([record for run in runs for record in run])
    seconds = sum(summarize(run).duration_s for run in runs)
    return replace(summary, duration_s=seconds)


def _table(points: Sequence[tuple[Setting, float, Summary]], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("ms")
    for name in (
        "load",
        "TTFT p50, ms",
        "p90",
        "p99",
        "TPOT p50",
        "p90",
        "ITL p50",
        "p99",
        "E2E p50",
        "tokens/s",
    ):
        table.add_column(name, justify="right")
    for setting, scale, s in points:
        values = (s.ttft.p50, s.ttft.p90, s.ttft.p99, s.tpot.p50, s.tpot.p90, s.itl.p50, s.itl.p99, s.e2e.p50)
        table.add_row(
            str(setting),
            f"{scale:g}" if scale else "all at once",
            *(f"{value * 1e3:,.1f}" for value in values),
            f"{s.total_rate:,.0f}",
        )
    return table


def _save(
    options: argparse.Namespace,
    points: Sequence[tuple[Setting, float, Summary]],
    title: str,
    found: dict[str, Any],
) -> None:
    rows = [
        {"chunk": s.chunk, "batching": s.batching.value, "load": scale, "summary": summary.as_json()}
        for s, scale, summary in points
    ]
    asked = {k: v for k, v in vars(options).items() if isinstance(v, str | int | float)}
    content = {"title": title, "made_with": found, "options": asked, "points": rows}
    options.output.write_text(json.dumps(content, indent=2) + "\n")
    marks = [Mark(str(s), scale, _spreads(summary)) for s, scale, summary in points if scale]
    if marks:
        plot_chunks(marks, title, options.output.with_suffix(".png"))


def _spreads(summary: Summary) -> dict[str, Percentiles]:
    return {name: getattr(summary, name) for name in _LATENCIES}


def _numbers(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chunked",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--on", choices=list(_MEASURES), default="simulator")
    parser.add_argument("--chunks", type=_numbers(int), default="64,256,1024,2048,8192,16384,-1", metavar="N")
    parser.add_argument(
        "--batching", type=_numbers(Batching), default="mixed", metavar="KIND", help="mixed, prefill-first, …"
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
    parser.add_argument("--model", default="smollm2", help="with --on cpu")
    parser.add_argument("--context", type=int, default=2048, metavar="TOKENS", help="with --on cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON; the figure goes beside it as .png")
    return parser


if __name__ == "__main__":
    main()
