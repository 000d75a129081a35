"""Compare Baton in both fixed modes with vLLM on the same prompts, in one run.

    python -m benchmarks.compare --cpu --vllm-python /path/to/vllm/bin/python

The systems run one after the other and answer the same requests: first all at once, then more of them one by
one. All prompts have the same length; so have all answers, which are greedy unless sampling flags are given
for Baton. Baton is measured over HTTP, vLLM inside its process.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.load.workload import Fixed, Work, make_workload
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.report import Summary, figures_table
from benchmarks.lib.servers.systems import Comparison, Outcome, baton, vllm
from engine.device.cpu_dtype import preferred_cpu_dtype

_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = make_parser().parse_args()
    console = Console()
    comparison = Comparison(
        model=options.model,
        device="cpu" if options.cpu else "cuda",
        dtype=options.dtype or (preferred_cpu_dtype() if options.cpu else "bfloat16"),
        together=_workload(options, options.concurrency, seed=1),
        alone=_workload(options, options.alone, seed=2),
        warmup=_workload(options, 1, seed=3),
        asked=body_of(options),
    )
    pool = 2 * options.concurrency * (options.input_length + options.output_length)
    systems = {
        "Baton mixed": partial(baton, comparison, "mixed", "--kv-pool-tokens", str(pool)),
        "Baton disagg": partial(baton, comparison, "disagg", "--kv-pool-tokens", str(pool)),
    }
    if options.vllm_python:
        systems["vLLM"] = partial(vllm, comparison, options.vllm_python)
    if options.only:
        systems = {name: run for name, run in systems.items() if name in options.only}
    outcomes = []
    for name, run in systems.items():
        with console.status(f"{name} …"):
            outcomes.append(run())
        console.print(
            f"{name}: {outcomes[-1].together.total_rate:,.0f} tokens/s, {options.concurrency} at once"
        )
    title = (
        f"{options.model}, {comparison.dtype}, {options.input_length} tokens in, {options.output_length} out"
        f", on {describe_machine()}"
    )
    console.print(comparison_table(outcomes, options.concurrency, title))
    path = options.results / (options.name or f"compare-{comparison.device}")
    save_json(
        path.with_suffix(".json"),
        {"title": title, "outcomes": [outcome.as_json() for outcome in outcomes]},
    )
    console.print(f"Written to {path}.json")


def comparison_table(outcomes: Sequence[Outcome], concurrency: int, title: str) -> Table:
    """One column a system. Tokens a second count prompt and output; latencies are in milliseconds."""
    table = figures_table(title, "", *(outcome.name for outcome in outcomes))
    _add_load(table, f"{concurrency} at once", [outcome.together for outcome in outcomes])
    _add_load(table, "1 alone", [outcome.alone for outcome in outcomes])
    table.add_row("peak memory (GiB)", *(f"{outcome.peak_bytes / 2**30:.1f}" for outcome in outcomes))
    return table


def _add_load(table: Table, name: str, summaries: Sequence[Summary]) -> None:
    table.add_row(f"[bold]{name}")
    table.add_row("  tokens/s", *(f"{summary.total_rate:,.0f}" for summary in summaries))
    latencies = {
        "TTFT p50": [summary.ttft.p50 for summary in summaries],
        "ITL p50": [summary.itl.p50 for summary in summaries],
        "ITL p99": [summary.itl.p99 for summary in summaries],
    }
    for latency, values in latencies.items():
        table.add_row(f"  {latency} (ms)", *(f"{seconds * 1e3:,.0f}" for seconds in values))
    table.add_section()


def _workload(options: argparse.Namespace, count: int, seed: int) -> list[Work]:
    return make_workload(
        count=count,
        rate=math.inf,
        input_lengths=Fixed(options.input_length),
        output_lengths=Fixed(options.output_length),
        seed=seed,
    )


def make_parser() -> argparse.ArgumentParser:
    parser = command("compare", __doc__)
    parser.add_argument("--cpu", action="store_true", help="on the CPU, in the dtype that is faster there")
    parser.add_argument("--model", default="smollm2")
    sampling_arguments(parser)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests at once")
    parser.add_argument("--alone", type=int, default=3, metavar="N", help="requests one by one")
    parser.add_argument("--input-length", type=int, default=512, metavar="TOKENS")
    parser.add_argument("--output-length", type=int, default=64, metavar="TOKENS")
    parser.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PATH",
        help="Python of an environment with vLLM, to measure it too",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=["Baton mixed", "Baton disagg", "vLLM"],
        metavar="SYSTEM",
        help="may be given more than once (default: all)",
    )
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    parser.add_argument("--name", metavar="NAME", help="NAME.json (compare-DEVICE)")
    return parser


if __name__ == "__main__":
    main()
