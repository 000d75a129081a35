"""Mixed batches, disaggregation and adaptive placement: the same workers and requests, over a sweep of rates.

    python -m benchmarks.modes --rates 0.2,0.4 --seconds 60 --tpot 0.15 --pause 1
    python -m benchmarks.modes --device cuda --model FOLDER --flags "--load-format dummy" \\
           --rates 8,12,14,16 --seconds 20 --seeds 1,2,3 --ttft 0.5 --tpot 0.015 --pause 0 \\
           --input-length lognormal:2048:0.8:16384 --output-length uniform:128:512 \\
           --mixed-flags "--itl-target-ms 14" --warm-up 64 --name modes-h200
    python -m benchmarks.modes ... --modes adaptive --append    # add to an earlier file, or do runs again
    python -m benchmarks.modes ... --modes none --against vllm=http://127.0.0.1:8000 --append

With N workers, mixed mode has N that do both; disagg gives --prefill-workers of them to prefill and the
others to decode; adaptive starts with the same split and places each request to meet --ttft and --tpot. One
server per mode serves every rate with every seed; a seed is one sample of arrivals and lengths, the same for
all modes. Arrivals are a Poisson process (open loop), and every run starts with empty queues.

--against measures OpenAI servers that are already running, also of other systems, with the same requests.

Goodput counts answers that met the objective: first token within --ttft seconds, tokens after it every --tpot
seconds on average, and none later than --pause seconds after the one before. "came" is the rate of the
requests that were sent: a short draw of a Poisson process has another rate than its mean. Figures are means
over the seeds, with the lowest and the highest in brackets.

Results are written after every run, so a run that is cut off keeps what it has. A server that does not start,
or that answers nothing, is reported and skipped; the exit status is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command, save_json
from benchmarks.lib.load.client import Record, Target, only_model
from benchmarks.lib.load.offer import offer
from benchmarks.lib.load.sampling_flags import body_of, sampling_arguments
from benchmarks.lib.load.workload import Lengths, Work, make_workload, parse_lengths
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.outcomes import Point, Run, arrival_rate, points_of
from benchmarks.lib.plots import plot_modes
from benchmarks.lib.provenance import provenance
from benchmarks.lib.report import Objective, figures_table, summarize
from benchmarks.lib.servers.mode_servers import MODEL_NAME, ModeServers, mode_arguments, require_answers
from benchmarks.lib.servers.server import ServerFailed

_RESULTS = Path(__file__).parent / "results"
WARM_UP_SEED = 1_000_003
_FILE_WIDTH = 160
"""Width of the output in columns, where it is no terminal."""

Offer = Callable[[Target, Sequence[Work]], list[Record]]


def main() -> None:
    options = make_parser().parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    objective = _bounds(options.ttft, options.tpot, options.pause)
    servers = ModeServers.of(options, objective)
    name = options.name or f"modes-{options.device}"
    flags = {mode: servers.flags_for(mode) for mode in options.modes}
    results = Results(options.results / name, _title(options, objective), objective, flags)
    if options.append:
        results.take_in_earlier()

    def send(target: Target, workload: Sequence[Work]) -> list[Record]:
        return asyncio.run(offer(target, workload, console=console))

    measure_modes(options, servers, results, send, console)
    if results.runs:
        console.print(rates_table(points_of(results.runs), results.title))
        console.print(f"Written to {results.path}.json and .png")
    for mode, error in results.failures.items():
        console.print(f"{mode} failed: {error}", markup=False)
    if results.failures:
        raise SystemExit(1)


@dataclass(slots=True)
class Results:
    """What was measured so far, and its files."""

    path: Path
    """Without a suffix."""
    title: str
    objective: Objective
    flags: dict[str, list[str]]
    """Flags of each mode's server."""
    runs: list[Run] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def take_in_earlier(self) -> None:
        """Runs of the file that is there. Raises SystemExit if its settings differ from these."""
        file = self.path.with_suffix(".json")
        if not file.exists():
            return
        content = json.loads(file.read_text())
        if content["title"] != self.title:
            raise SystemExit(
                f"--append: {file} was measured as\n{content['title']}\nand not as\n{self.title}"
            )
        self.runs = [Run.from_json(run) for run in content["points"]]
        self.flags = content["flags"] | self.flags

    def add(self, run: Run) -> None:
        """Replaces an earlier run of the same mode, rate and seed."""
        same = (run.mode, run.rate, run.seed)
        self.runs = [r for r in self.runs if (r.mode, r.rate, r.seed) != same] + [run]
        self.write()

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "title": self.title,
            "made_with": provenance(),
            "flags": self.flags,
            "failures": self.failures,
            "points": [run.as_json() for run in self.runs],
        }
        save_json(self.path.with_suffix(".json"), content)
        if self.runs:
            plot_modes(points_of(self.runs), self.title, self.path.with_suffix(".png"))


def measure_modes(
    options: argparse.Namespace,
    servers: ModeServers,
    results: Results,
    send: Offer,
    console: Console,
) -> None:
    """Every mode, one after the other, then the servers of --against. Runs and failures go to `results`."""
    for mode in options.modes:
        console.print(f"{mode}: starting {options.workers} workers")
        try:
            with servers.server(mode) as server:
                _measure(mode, Target(server.url, MODEL_NAME), options, results, send, console)
        except ServerFailed as error:
            _note_failure(mode, error, results, console)
    for name, url in options.against:
        try:
            _measure(name, Target(url, only_model(url)), options, results, send, console)
        except (ServerFailed, httpx.HTTPError) as error:
            _note_failure(name, error, results, console)


def _note_failure(name: str, error: Exception, results: Results, console: Console) -> None:
    results.failures[name] = str(error)
    results.write()
    console.print(f"{name} failed, continuing with the others: {error}", markup=False)


def _measure(
    mode: str,
    target: Target,
    options: argparse.Namespace,
    results: Results,
    send: Offer,
    console: Console,
) -> None:
    """All rates and seeds on one server. Raises ServerFailed."""
    for rate, seed, records in _sweep(options, replace(target, extra=_extra(options)), send):
        came = arrival_rate([record.sent for record in records])
        s = summarize(records, results.objective)
        run = Run(mode, rate, seed, came, s)
        results.add(run)
        console.print(
            f"{mode}, {rate:g} requests/s ({came:.2f} came), seed {seed}: "
            f"{100 * run.share_good:.0f}% good, TTFT p50 {1e3 * s.ttft.p50:,.0f} ms, "
            f"TPOT p50 {1e3 * s.tpot.p50:,.1f} ms, {s.failed} failed"
        )


def _extra(options: argparse.Namespace) -> dict[str, Any]:
    return {"ignore_eos": True, **body_of(options)}


def _sweep(
    options: argparse.Namespace, target: Target, send: Offer
) -> Iterator[tuple[float, int, list[Record]]]:
    """Rate, seed and what came of it, after a warm-up. Raises ServerFailed."""
    lengths = parse_lengths(options.input_length), parse_lengths(options.output_length)
    if options.warm_up:
        require_answers(send(target, _workload(options.warm_up, max(options.rates), lengths, WARM_UP_SEED)))
    for rate in options.rates:
        count = options.requests or max(1, round(rate * options.seconds))
        for seed in options.seeds:
            records = send(target, _workload(count, rate, lengths, seed))
            require_answers(records)
            yield rate, seed, records


def _workload(count: int, rate: float, lengths: tuple[Lengths, Lengths], seed: int) -> list[Work]:
    return make_workload(
        count=count, rate=rate, input_lengths=lengths[0], output_lengths=lengths[1], seed=seed
    )


def _title(options: argparse.Namespace, bounds: Objective) -> str:
    amount = f"{options.requests} requests" if options.requests else f"{options.seconds:g} s"
    objective = [f"TTFT ≤ {bounds.ttft_s:g} s"] if bounds.ttft_s else []
    objective += [f"TPOT ≤ {bounds.tpot_s:g} s"] if bounds.tpot_s else []
    objective += [f"no pause > {bounds.pause_s:g} s"] if bounds.pause_s else []
    return (
        f"{Path(options.model).name}, {options.workers} workers on {describe_machine()}; "
        f"{options.input_length} tokens in, {options.output_length} out; {amount} a run\n"
        f"good: {', '.join(objective) or 'answered'}"
    )


def rates_table(points: Sequence[Point], title: str) -> Table:
    latencies: dict[str, Callable[[Run], float]] = {
        "TTFT p50": lambda run: run.summary.ttft.p50,
        "TTFT p99": lambda run: run.summary.ttft.p99,
        "TPOT p50": lambda run: run.summary.tpot.p50,
        "ITL p99": lambda run: run.summary.itl.p99,
    }
    names = (f"{name}, ms" for name in latencies)
    table = figures_table(title, "requests/s", "arrivals/s", "mode", "goodput", "good", *names, "failed")
    for point in sorted(points, key=lambda point: point.rate):
        table.add_row(
            f"{point.rate:g}",
            point.spread(lambda run: run.offered).text(lambda rate: f"{rate:.2f}"),
            point.mode,
            point.spread(lambda run: run.summary.goodput).text(lambda rate: f"{rate:.2f}"),
            point.spread(lambda run: 100 * run.share_good).text(lambda share: f"{share:.0f}%"),
            *(point.spread(figure).text(_milliseconds) for figure in latencies.values()),
            str(sum(run.summary.failed for run in point.runs)),
        )
    return table


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.02 else f"{1e3 * seconds:.1f}"


def _bounds(ttft: float, tpot: float, pause: float) -> Objective:
    return Objective(ttft_s=ttft or None, tpot_s=tpot or None, pause_s=pause or None)


def _named_url(text: str) -> tuple[str, str]:
    name, _, url = text.partition("=")
    if not name or not url.startswith("http"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as vllm=http://127.0.0.1:8000")
    return name, url


def _rates(text: str) -> list[float]:
    return [float(rate) for rate in text.split(",")]


def _seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = command(
        "modes",
        __doc__,
        allow_abbrev=False,
        epilog="Flags that are a single word need an equals sign: --mixed-flags=--disable-cuda-graph",
    )
    mode_arguments(parser.add_argument_group("servers"))
    parser.add_argument(
        "--against",
        type=_named_url,
        action="append",
        default=[],
        metavar="NAME=URL",
        help="an OpenAI server that is already running; may be given more than once",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--rates", type=_rates, default="0.2,0.4,0.6,0.8", metavar="R,…", help="requests a second"
    )
    load.add_argument("--seeds", type=_seeds, default="1", metavar="N,…", help="every rate, with each (1)")
    amount = load.add_mutually_exclusive_group()
    amount.add_argument("--requests", type=int, metavar="N", help="of a run")
    amount.add_argument("--seconds", type=float, default=60.0, metavar="S", help="for which they come (60)")
    load.add_argument("--input-length", default="lognormal:256:0.8:2048", metavar="LENGTHS")
    load.add_argument(
        "--output-length", default="uniform:32:96", metavar="LENGTHS", help="N, uniform:… or lognormal:…"
    )
    load.add_argument(
        "--warm-up",
        type=int,
        default=8,
        metavar="N",
        help="requests of these lengths at the highest rate, sent first and not counted; the same for every"
        " mode (8)",
    )
    sampling_arguments(parser)
    good = parser.add_argument_group("what counts as good; 0: any")
    good.add_argument("--ttft", type=float, default=1.0, metavar="SECONDS")
    good.add_argument("--tpot", type=float, default=0.03, metavar="SECONDS")
    good.add_argument("--pause", type=float, default=0.1, metavar="SECONDS")
    output = parser.add_argument_group("results")
    output.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    output.add_argument("--name", metavar="NAME", help="NAME.json and NAME.png (modes-DEVICE)")
    output.add_argument(
        "--append", action="store_true", help="keep the runs of that file; the same runs are replaced"
    )
    return parser


if __name__ == "__main__":
    main()
