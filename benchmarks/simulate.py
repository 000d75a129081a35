"""Simulate the scheduling of a load on a modelled GPU, to predict before measuring.

    python -m benchmarks.simulate --rate 30 --itl-targets 14,20,30,0
    python -m benchmarks.simulate --rate 30 --presets baton,sglang,vllm,roseinfer
    python -m benchmarks.simulate --cluster --help

The real engine plans the steps: scheduler, pages, ITL controller, planning ahead. A formula gives the time of
each step on device and host, and the clock advances from event to event. `Costs` are those of Llama-3.1-8B on
an H200, fitted to measured steps.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.cluster import main as cluster
from benchmarks.lib.engines.simulated_gpu import CHUNK_BUDGET, Costs, simulate
from benchmarks.lib.load.workload import Uniform, Work, make_workload, parse_lengths
from benchmarks.lib.report import Summary, summarize
from engine.presets import Preset

__all__ = ["main"]

_NAMES: Final = ", ".join(preset.value for preset in Preset)
_LONG: Final = Uniform(8192, 32768)


def main() -> None:
    if "--cluster" in sys.argv[1:]:
        cluster.main([argument for argument in sys.argv[1:] if argument != "--cluster"])
        return
    options = _parser().parse_args()
    load = _load(options)
    console = Console()
    with console.status("") as status:
        summaries = {}
        for preset in options.presets:
            # Other systems have no ITL target.
            for target in options.itl_targets if preset is Preset.BATON else [0.0]:
                status.update(f"{preset.value}, --itl-target-ms {target:g} …")
                records = simulate(
                    load,
                    target / 1e3 or None,
                    Costs(),
                    preset=preset,
                    chunk_budget=options.chunked_prefill_size,
                    late=not options.early,
                )
                summaries[preset, target] = summarize(records)
    lengths = f"{options.input_length} in, {options.output_length} out"
    title = f"{len(load)} requests, {options.rate:g} a second: {lengths}"
    console.print(_table(summaries, title))


def _load(options: argparse.Namespace) -> list[Work]:
    count = max(1, round(options.rate * options.seconds))
    usual, long = (
        make_workload(
            count=count,
            rate=options.rate,
            input_lengths=lengths,
            output_lengths=parse_lengths(options.output_length),
            seed=options.seed,
        )
        for lengths in (parse_lengths(options.input_length), _LONG)
    )
    rng = random.Random(options.seed)
    return [
        replace(work, prompt=other.prompt) if rng.random() < options.long else work
        for work, other in zip(usual, long, strict=True)
    ]


def _table(summaries: dict[tuple[Preset, float], Summary], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("preset")
    for name in ("ITL target, ms", "TTFT p50, ms", "p99", "TPOT p50, ms", "ITL p99, ms", "max"):
        table.add_column(name, justify="right")
    for (preset, target), s in summaries.items():
        values = (s.ttft.p50, s.ttft.p99, s.tpot.p50, s.itl.p99, s.itl.max)
        table.add_row(
            preset.value, f"{target:g}" if target else "none", *(f"{1e3 * value:,.1f}" for value in values)
        )
    return table


def _presets(text: str) -> list[Preset]:
    return [Preset(name) for name in text.split(",")]


def _targets(text: str) -> list[float]:
    return [float(target) for target in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rate", type=float, default=30.0, metavar="R", help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="seconds of arrivals")
    parser.add_argument("--input-length", default="lognormal:372:0.8:4096", metavar="LENGTHS")
    parser.add_argument("--output-length", default="lognormal:200:0.7:1024", metavar="LENGTHS")
    parser.add_argument(
        "--long", type=float, default=0.0, metavar="SHARE", help="share of prompts with 8k to 32k tokens"
    )
    parser.add_argument(
        "--itl-targets", type=_targets, default="14,20,30,0", metavar="MS,…", help="0: no target"
    )
    parser.add_argument("--presets", type=_presets, default="baton", metavar="NAME,…", help=_NAMES)
    parser.add_argument(
        "--chunked-prefill-size", type=int, default=CHUNK_BUDGET, metavar="N", help="tokens of a step"
    )
    parser.add_argument("--early", action="store_true", help="plan each step as early as possible")
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    main()
