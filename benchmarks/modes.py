"""Mixed batches against disaggregation: the same workers, the same requests, over a sweep of rates.

    python -m benchmarks.modes --device cpu --rates 0.2,0.4,0.6,0.8

With N workers, mixed mode has N that do both; disaggregation gives `--prefill-workers` of them to prefill and
the others to decode. Requests come open-loop, as a Poisson process; every rate begins with all queues empty.
Goodput counts the answers that kept their promises: first token within --ttft seconds, and tokens after it
every --tpot seconds in the mean, none later than --pause seconds after the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.lib.client import Target
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.offer import offer
from benchmarks.lib.outcomes import Point
from benchmarks.lib.plots import plot_modes
from benchmarks.lib.report import Objective, summarize
from benchmarks.lib.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.server import BatonServer
from benchmarks.lib.workload import Fixed, Work, make_workload, parse_lengths

__all__ = ["rates_table"]

_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    options = _parser().parse_args()
    console = Console()
    decode_workers = options.workers - options.prefill_workers
    if decode_workers < 1 or options.prefill_workers < 1:
        raise SystemExit(
            f"--prefill-workers {options.prefill_workers} of --workers {options.workers}: "
            "both kinds need at least one"
        )
    layouts = {
        "mixed": ["--decode-workers", str(options.workers)],
        "disagg": [
            "--prefill-workers",
            str(options.prefill_workers),
            "--decode-workers",
            str(decode_workers),
        ],
    }
    points = [point for mode, flags in layouts.items() for point in _sweep(options, mode, flags, console)]
    title = (
        f"{Path(options.model).name}, {options.workers} workers on {describe_machine()}; "
        f"{options.input_length} tokens in, {options.output_length} out\n"
        f"good: TTFT ≤ {options.ttft:g} s, TPOT ≤ {options.tpot:g} s, no pause > {options.pause:g} s"
    )
    console.print(rates_table(points, title))
    path = options.results / f"modes-{options.device}"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = {"title": title, "points": [point.as_json() for point in points]}
    path.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")
    plot_modes(points, title, path.with_suffix(".png"))
    console.print(f"Written to {path}.json and .png")


def _sweep(options: argparse.Namespace, mode: str, flags: Sequence[str], console: Console) -> Iterator[Point]:
    """All rates on one server of that mode."""
    command = ["--mode", mode, "--model", options.model, "--served-model-name", "model", *flags]
    command += ["--device", options.device, "--disable-radix-cache", *options.flags.split()]
    objective = Objective(ttft_s=options.ttft, tpot_s=options.tpot, pause_s=options.pause)
    with BatonServer(*command) as server:
        target = Target(server.url, "model", extra={"ignore_eos": True, **body_of(options)})
        asyncio.run(offer(target, _warm_up()))
        for rate in options.rates:
            workload = make_workload(
                count=options.requests or max(1, round(rate * options.seconds)),
                rate=rate,
                input_lengths=parse_lengths(options.input_length),
                output_lengths=parse_lengths(options.output_length),
                seed=1,
            )
            console.print(f"{mode}, {rate:g} requests/s")
            records = asyncio.run(offer(target, workload, console=console))
            yield Point(mode, rate, summarize(records, objective))


def _warm_up() -> list[Work]:
    return make_workload(count=4, rate=4.0, input_lengths=Fixed(256), output_lengths=Fixed(8), seed=2)


def rates_table(points: Sequence[Point], title: str) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False)
    latencies = ("TTFT p50", "TTFT p99", "ITL p50", "ITL p99")
    for name in ("requests/s", "mode", "goodput", "good", *(f"{name}, ms" for name in latencies), "failed"):
        table.add_column(name, justify="right")
    for point in sorted(points, key=lambda point: point.rate):
        s = point.summary
        table.add_row(
            f"{point.rate:g}",
            point.mode,
            f"{s.goodput:.2f}",
            f"{100 * s.good / max(s.succeeded + s.failed, 1):.0f}%",
            *(f"{1e3 * value:,.0f}" for value in (s.ttft.p50, s.ttft.p99, s.itl.p50, s.itl.p99)),
            str(s.failed),
        )
    return table


def _rates(text: str) -> list[float]:
    return [float(rate) for rate in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.modes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="smollm2")
    sampling_arguments(parser)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="of both kinds together")
    parser.add_argument("--prefill-workers", type=int, default=1, metavar="N", help="with disaggregation")
    parser.add_argument(
        "--rates", type=_rates, default="0.2,0.4,0.6,0.8", metavar="R,…", help="requests a second"
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--requests", type=int, metavar="N", help="at each rate")
    amount.add_argument("--seconds", type=float, default=60.0, metavar="S", help="for which they come (60)")
    parser.add_argument("--input-length", default="lognormal:256:0.8:2048", metavar="LENGTHS")
    parser.add_argument("--output-length", default="uniform:32:96", metavar="LENGTHS")
    parser.add_argument("--ttft", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--tpot", type=float, default=0.03, metavar="SECONDS")
    parser.add_argument("--pause", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--flags", default="", help="more flags for the router, in quotes")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    return parser


if __name__ == "__main__":
    main()
