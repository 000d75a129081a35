"""Simulate the scheduling of a load on a modelled GPU, to predict before measuring.

    python -m benchmarks.simulate --rate 30 --itl-targets 14,20,30,0
    python -m benchmarks.simulate --flags "--preset vllm" --flags "--preset vllm --schedule-policy shortest"
    python -m benchmarks.simulate --load behind-long --output behind-long.json
    python -m benchmarks.simulate --cluster --help

The real engine plans the steps: scheduler, pages, ITL controller, planning ahead. A formula gives the time of
each step on device and host, and the clock advances from event to event. The costs are those of Llama-3.1-8B
on an H200, fitted to measured steps, or of another model (`--model`). A scheduler is given by flags of
`router`, whose defaults it has.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import simulated_cluster
from benchmarks.lib.command import command, save_json
from benchmarks.lib.engines.driven import simulate
from benchmarks.lib.engines.simulated_gpu import FlagLineError, config_of_flags
from benchmarks.lib.load.client import Record
from benchmarks.lib.load.workload import Uniform, Work, parse_lengths, with_long_prompts
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Percentiles, figures_table, summarize
from simulator.device import ENGINE_H200_8B, ENGINE_H200_70B_FP8, H200_QWEN3_30B_FP8, DeviceCosts
from simulator.planner.costs import costs_of
from simulator.planner.hardware import H200
from simulator.planner.model_shape import UnknownModel, shape_of

_LONG: Final = 100_000
_DECODES: Final = 20
_BEHIND: Final = 20
_LONG_LENGTHS: Final = Uniform(8192, 32768)
_SCHEDULERS: Final = {
    "behind-long": (
        "--preset vllm --chunked-prefill-size -1",
        "--preset sglang",
        "--preset sglang --enable-mixed-chunk",
        "--preset vllm",
        "--preset vllm --chunked-prefill-size 8192 --max-num-partial-prefills 4",
        "--preset vllm --long-prefill-token-threshold 1024",
        "--preset vllm --schedule-policy shortest",
        "--itl-target-ms 0 --chunked-prefill-size 2048",
        "",
    ),
}
"""What is compared under a load by default."""
_WIDTH: Final = 180
"""Columns of a terminal that hold all of the table."""
_LOADS: Final = ("poisson", *_SCHEDULERS)
_MODELS: Final = {
    "llama-3.1-8b": ENGINE_H200_8B,
    "llama-3.3-70b-fp8": ENGINE_H200_70B_FP8,
    "qwen3-30b-a3b-fp8": H200_QWEN3_30B_FP8,
}


@dataclass(frozen=True, slots=True)
class _Case:
    title: str
    works: list[Work]
    row: Callable[[Sequence[Record]], dict[str, float]]
    """The figures of a run, by name."""


def main() -> None:
    if "--cluster" in sys.argv[1:]:
        simulated_cluster.main([argument for argument in sys.argv[1:] if argument != "--cluster"])
        return
    options = make_parser().parse_args()
    found = provenance()
    costs = _costs(options.model)
    case = _behind_long() if options.load == "behind-long" else _poisson(options)
    console = Console(emoji=False, width=max(Console().width, _WIDTH))
    runs: dict[str, list[Record]] = {}
    with console.status("") as status:
        for line in _lines(options):
            status.update(f"{line or 'defaults'} …")
            try:
                config = config_of_flags(line)
            except FlagLineError as error:
                sys.exit(f"benchmarks.simulate: --flags {line!r}: {error}")
            runs[line] = simulate(case.works, config, costs)
    rows = {line: case.row(records) for line, records in runs.items()}
    console.print(_table(rows, case.title))
    if options.output:
        content = {
            "title": case.title,
            "command": " ".join(["python -m benchmarks.simulate", *sys.argv[1:]]),
            "made_with": found,
            "schedulers": [
                {"flags": line, "figures": rows[line], "summary": summarize(records).as_json()}
                for line, records in runs.items()
            ],
        }
        save_json(options.output, content)


def _costs(model: str) -> DeviceCosts:
    if model in _MODELS:
        return _MODELS[model]
    try:
        return costs_of(shape_of(model), H200, 1).device
    except UnknownModel as error:
        sys.exit(f"benchmarks.simulate: --model {model}: {error}")


def _behind_long() -> _Case:
    """Answers that run, a long prompt, and short prompts that arrive while it is computed."""
    running = [Work(0.0, [1000 + k] * 512, 1500) for k in range(_DECODES)]
    behind = [Work(1.1 + 0.1 * k, [2000 + k] * 256, 64) for k in range(_BEHIND)]
    title = (
        f"simulated H200: {_DECODES} running answers, a prompt of {_LONG:,} tokens after 1 s, and then"
        f" {_BEHIND} prompts of 256"
    )
    return _Case(title, [*running, Work(1.0, [3000] * _LONG, 64), *behind], _behind_row)


def _behind_row(records: Sequence[Record]) -> dict[str, float]:
    running, long, behind = records[:_DECODES], records[_DECODES], records[_DECODES + 1 :]
    others = Percentiles.of(record.ttft for record in behind)
    return {
        "TTFT of those behind, p50, ms": 1e3 * others.p50,
        "max": 1e3 * others.max,
        "TTFT of the long prompt, ms": 1e3 * long.ttft,
        "longest pause of running answers, ms": 1e3 * max(max(record.itls) for record in running),
    }


def _row(records: Sequence[Record]) -> dict[str, float]:
    s = summarize(records)
    ms = {
        "TTFT p50, ms": s.ttft.p50,
        "TTFT p90": s.ttft.p90,
        "TTFT p99": s.ttft.p99,
        "TPOT p50, ms": s.tpot.p50,
        "TPOT p99": s.tpot.p99,
        "ITL p99, ms": s.itl.p99,
        "ITL max": s.itl.max,
        "E2E p99, ms": s.e2e.p99,
    }
    return {name: 1e3 * value for name, value in ms.items()} | {"tokens/s": s.total_rate}


def _poisson(options: argparse.Namespace) -> _Case:
    works = with_long_prompts(
        count=options.requests or max(1, round(options.rate * options.seconds)),
        rate=options.rate,
        input_lengths=parse_lengths(options.input_length),
        output_lengths=parse_lengths(options.output_length),
        share=options.long,
        long_lengths=_LONG_LENGTHS,
        seed=options.seed,
    )
    rate = f"{options.rate:g} a second" if math.isfinite(options.rate) else "all at once"
    share = f" ({options.long:.0%} of 8k to 32k)" if options.long else ""
    lengths = f"{options.input_length} in{share}, {options.output_length} out"
    return _Case(f"simulated H200, {options.model}: {len(works)} requests, {rate}: {lengths}", works, _row)


def _table(rows: Mapping[str, Mapping[str, float]], title: str) -> Table:
    table = figures_table(title, "flags of router", *next(iter(rows.values())))
    for line, row in rows.items():
        table.add_row(
            line or "(defaults)",
            *(f"{value:,.1f}" if value < 100 else f"{value:,.0f}" for value in row.values()),
        )
    return table


def _lines(options: argparse.Namespace) -> list[str]:
    if lines := options.flags or _SCHEDULERS.get(options.load):
        return list(lines)
    return [f"--itl-target-ms {target}" for target in options.itl_targets.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = command("simulate", __doc__)
    parser.add_argument(
        "--model",
        default="llama-3.1-8b",
        help=f"{' or '.join(_MODELS)}: fitted to servers; any other as in `router plan`, by its roofline",
    )
    parser.add_argument("--load", choices=_LOADS, default="poisson")
    parser.add_argument(
        "--rate", type=float, default=30.0, metavar="R", help="requests a second; inf: all at once"
    )
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="seconds of arrivals")
    parser.add_argument("--requests", type=int, metavar="N", help="in place of --seconds")
    parser.add_argument("--input-length", default="lognormal:372:0.8:4096", metavar="LENGTHS")
    parser.add_argument("--output-length", default="lognormal:200:0.7:1024", metavar="LENGTHS")
    parser.add_argument(
        "--long", type=float, default=0.0, metavar="SHARE", help="share of prompts with 8k to 32k tokens"
    )
    parser.add_argument(
        "--flags", action="append", metavar="FLAGS", help="a scheduler, by flags of router; repeatable"
    )
    parser.add_argument(
        "--itl-targets", default="14,20,30,0", metavar="MS,…", help="without --flags; 0: no target"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, metavar="FILE", help="of the figures, as JSON")
    return parser


if __name__ == "__main__":
    main()
