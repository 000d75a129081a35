"""Effect of a long prompt on running answers, with and without chunked prefill.

    python -m benchmarks.long_prefill

Eight answers stream; then a prompt of 4,000 tokens arrives. Without chunking, one step computes all of it,
during which every running answer stalls. With chunking, a step computes at most one chunk of it, together
with the next token of each running answer.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, open_client, send
from benchmarks.lib.load.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.load.workload import Fixed, Work, make_workload
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.outcomes import Interruption
from benchmarks.lib.plots import plot_long_prefill
from benchmarks.lib.report import figures_table
from benchmarks.lib.servers.server import BatonServer

_RESULTS = Path(__file__).parent / "results"
_POLL_S = 0.005
_SHORT_PROMPT = 32
_TOKENS_BEFORE = 8
"""Every answer has this many tokens when the long prompt is sent: all of them are decoding then."""


async def interrupt(target: Target, decodes: Sequence[Work], long: Work) -> tuple[list[Record], Record]:
    """Send `decodes`, wait until all of them stream, send `long`, wait for everything."""
    running = [Record() for _ in decodes]
    async with open_client(target) as client, asyncio.TaskGroup() as group:
        for work, record in zip(decodes, running, strict=True):
            group.create_task(send(client, target, work, record))
        # Records are plain data without events, so this polls; it ends before the measurement.
        while any(len(record.arrivals) < _TOKENS_BEFORE and not record.ended for record in running):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        last = group.create_task(send(client, target, long))
    records = [*running, last.result()]
    for record in records:
        if record.error:
            raise SystemExit(f"A request failed, so there is nothing to measure: {record.error}")
    return running, last.result()


def main() -> None:
    options = _parser().parse_args()
    console = Console()
    decodes = _workload(options.decodes, _SHORT_PROMPT, options.output_length, seed=1)
    (long,) = _workload(1, options.prompt_length, 1, seed=2)
    pool = options.decodes * (_SHORT_PROMPT + options.output_length) + options.prompt_length
    outcomes = []
    for size in options.chunk_sizes:
        chunk = None if size == -1 else size
        command = ["--mode", "mixed", "--model", options.model, "--served-model-name", "model"]
        command += ["--chunked-prefill-size", str(size), "--kv-pool-tokens", str(2 * pool), *options.flags]
        with console.status(f"--chunked-prefill-size {size} …"), BatonServer(*command) as server:
            target = Target(server.url, "model", extra={"ignore_eos": True, **body_of(options)})
            outcomes.append(Interruption(chunk, *asyncio.run(interrupt(target, decodes, long))))
    title = (
        f"{options.decodes} answers running when a prompt of {options.prompt_length:,} tokens arrives: "
        f"{options.model} on {describe_machine()}"
    )
    console.print(_table(outcomes, title))
    _save(outcomes, title, options.results / "long-prefill")
    console.print(f"Written to {options.results}/long-prefill.json and .png")


def _workload(count: int, input_length: int, output_length: int, seed: int) -> list[Work]:
    return make_workload(
        count=count,
        rate=math.inf,
        input_lengths=Fixed(input_length),
        output_lengths=Fixed(output_length),
        seed=seed,
    )


def _table(outcomes: Sequence[Interruption], title: str) -> Table:
    names = (outcome.name for outcome in outcomes)
    table = figures_table(title, "since the long prompt's arrival", *names)
    rows = {
        "ITL p50 of running answers": [outcome.itl.p50 for outcome in outcomes],
        "ITL p99": [outcome.itl.p99 for outcome in outcomes],
        "longest wait for a token": [outcome.itl.max for outcome in outcomes],
        "TTFT of the long prompt": [outcome.long.ttft for outcome in outcomes],
    }
    for name, values in rows.items():
        table.add_row(name, *(f"{value * 1e3:,.0f} ms" for value in values))
    return table


def _save(outcomes: Sequence[Interruption], title: str, path: Path) -> None:
    results = {"title": title, "outcomes": [outcome.as_json() for outcome in outcomes]}
    save_json(path.with_suffix(".json"), results)
    plot_long_prefill(outcomes, title, path.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = command(
        "long_prefill", __doc__, epilog="Further flags, after --, go to the server: -- --page-size 32"
    )
    parser.add_argument("--model", default="smollm2")
    sampling_arguments(parser)
    parser.add_argument("--decodes", type=int, default=8, metavar="N", help="number of running answers")
    parser.add_argument("--prompt-length", type=int, default=4000, metavar="TOKENS")
    parser.add_argument("--output-length", type=int, default=64, metavar="TOKENS", help="of each answer")
    parser.add_argument(
        "--chunk-sizes",
        type=int,
        nargs="+",
        default=[256, 512, -1],
        metavar="TOKENS",
        help="-1: chunking off",
    )
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    parser.add_argument("flags", nargs="*", metavar="FLAGS", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
