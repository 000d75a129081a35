"""The largest rate at which 90% of the answers are good: each mode, over targets and workloads.

    python -m benchmarks.frontier                              # simulated H200s, 2 and 4 of them
    python -m benchmarks.frontier --workers 2 --regimes balanced --workloads "mixed,shifting" --jobs 2
    python -m benchmarks.frontier --on servers --device cuda --model FOLDER --flags "--load-format dummy" \\
           --workers 2 --regimes balanced --workloads mixed --start 12 --precision 0.05 --seconds 20
    python -m benchmarks.frontier --on servers --workers 2 --slower 20 --scale 0.1 --start 0.5 --precision 0.2

An answer is good if TTFT and TPOT are within the targets of the regime. Rates are found by bisection; all
rates of a seed draw the same requests, which only come faster. Fixed modes run at their best: mixed with its
default step and with steps of 0.95 x the TPOT target, disagg with every split. Adaptive begins with half of
the workers as prefill workers. Requests of the warm-up are sent, but not counted.

Simulated: the router's placement and the engine's scheduler on a formula of an H200 with the shape of
Llama-3.1-8B. Results are written after every cell; a run that is started again goes on where the file ends.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.frontier.cells import REGIMES, WORKLOADS, Regime, Workload, scaled
from benchmarks.frontier.outcome import Found, frontier_table, plot_frontiers
from benchmarks.frontier.search import WANTED, Search, best_of
from benchmarks.frontier.served import served_variants, serving
from benchmarks.frontier.simulated import simulated_variants
from benchmarks.lib.command import command, save_json
from benchmarks.lib.machine import describe_machine
from benchmarks.lib.provenance import provenance
from benchmarks.lib.servers.mode_servers import ModeServers, mode_arguments
from benchmarks.lib.servers.server import ServerFailed
from router.config.choices import Mode

_RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True, slots=True)
class _Task:
    workers: int
    regime: Regime
    workload: Workload


def main() -> None:
    options = make_parser().parse_args()
    console = Console() if Console().is_terminal else Console(width=160)
    path = options.results / (options.name or f"frontier-{options.on}")
    title = _title(options)
    found = _earlier(path, title)
    done = {(f.workers, f.regime, f.workload, f.mode) for f in found}
    tasks = [
        _Task(workers, scaled(REGIMES[regime], options.slower), WORKLOADS[workload])
        for workers in options.workers
        for regime in options.regimes
        for workload in options.workloads
    ]
    left = [
        task
        for task in tasks
        if any((task.workers, task.regime.name, task.workload.name, m) not in done for m in options.modes)
    ]
    measure = _simulate if options.on == "simulator" else _serve
    for number, results in enumerate(measure(left, options, console), start=1):
        found += results
        _write(path, title, found)
        console.print(
            f"{number} of {len(left)}: " + ", ".join(f"{f.variant} {f.rate:.2f}/s" for f in results)
        )
    order = [(task.workers, task.regime.name, task.workload.name) for task in tasks]
    known = [f for f in found if (f.workers, f.regime, f.workload) in order]
    known.sort(key=lambda f: order.index((f.workers, f.regime, f.workload)))
    console.print(frontier_table(known, title))
    plot_frontiers(known, title, path.with_suffix(".png"))
    console.print(f"Written to {path}.json and .png")


def _simulate(tasks: list[_Task], options: argparse.Namespace, _: Console) -> Iterator[list[Found]]:
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(_simulate_cell, tasks, [options] * len(tasks))


def _simulate_cell(task: _Task, options: argparse.Namespace) -> list[Found]:
    search = _search(options)
    found = []
    for mode in options.modes:
        variants = simulated_variants(
            Mode(mode),
            task.workers,
            task.regime,
            task.workload,
            seconds=options.seconds,
            warm_up=options.warm_up,
            seeds=options.seeds,
        )
        found.append(_found(task, mode, variants, search))
        search = replace(search, start=max(found[-1].rate, 0.1))
    return found


def _serve(tasks: list[_Task], options: argparse.Namespace, console: Console) -> Iterator[list[Found]]:
    for task in tasks:
        servers = ModeServers.of(
            argparse.Namespace(**{**vars(options), "workers": task.workers}), task.regime.objective
        )
        yield list(_serve_cell(task, servers, options, console))


def _serve_cell(
    task: _Task, servers: ModeServers, options: argparse.Namespace, console: Console
) -> Iterator[Found]:
    """A server at a time: each variant begins above what the one before reached."""
    search = _search(options)
    for mode in options.modes:
        best: Found | None = None
        for name, variant in served_variants(mode, servers, task.regime).items():
            try:
                with serving(
                    mode,
                    variant,
                    task.regime,
                    task.workload,
                    console,
                    seconds=options.seconds,
                    warm_up=options.warm_up,
                    seeds=options.seeds,
                    scale=options.scale,
                ) as share_at:
                    found = _found(task, mode, {name: share_at}, search)
            except ServerFailed as error:
                console.print(f"{name} failed, going on: {error}", markup=False)
                continue
            best = found if best is None or found.rate > best.rate else best
            search = replace(search, start=max(best.rate, search.lowest))
        if best is not None:
            yield best


def _found(task: _Task, mode: str, variants: Mapping[str, Callable[[float], float]], search: Search) -> Found:
    variant, frontier = best_of(variants, search)
    return Found(
        workers=task.workers,
        regime=task.regime.name,
        workload=task.workload.name,
        mode=mode,
        variant=variant,
        rate=frontier.rate,
        share=frontier.share,
        probes=frontier.probes,
    )


def _search(options: argparse.Namespace) -> Search:
    return Search(start=options.start, wanted=options.good, precision=options.precision)


def _earlier(path: Path, title: str) -> list[Found]:
    """What the file has, unless it was measured in another way."""
    file = path.with_suffix(".json")
    if not file.exists():
        return []
    content = json.loads(file.read_text())
    if content["title"] != title:
        raise SystemExit(
            f"{file} was measured as\n{content['title']}\nand not as\n{title}\n"
            "choose another --name, or remove it"
        )
    return [Found.from_json(entry) for entry in content["frontiers"]]


def _write(path: Path, title: str, found: list[Found]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"title": title, "made_with": provenance()}
    content["frontiers"] = [each.as_json() for each in found]
    save_json(path.with_suffix(".json"), content, indent=1)


def _title(options: argparse.Namespace) -> str:
    seeds = ",".join(map(str, options.seeds))
    on = "simulated H200s, Llama-3.1-8B's shape"
    if options.on == "servers":
        on = f"{Path(options.model).name} on {describe_machine()}"
    targets = "; ".join(
        f"{r.name} {1e3 * r.ttft_s:g} and {1e3 * r.tpot_s:g} ms"
        for r in (scaled(REGIMES[name], options.slower) for name in REGIMES)
    )
    lengths = f", lengths x {options.scale:g}" if options.on == "servers" and options.scale != 1 else ""
    return (
        f"requests/s with {options.good:.0%} good: {on}{lengths}\n"
        f"TTFT and TPOT: {targets}; {options.seconds:g} s after {options.warm_up:g} s, seeds {seeds},"
        f" within {options.precision:.0%}"
    )


def _names(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    """For argparse. Commas also stand within names, so names are taken out one by one."""

    def read(text: str) -> list[str]:
        names, rest = [], text
        while rest:
            name = next((name for name in known if rest == name or rest.startswith(f"{name},")), None)
            if name is None:
                raise argparse.ArgumentTypeError(f"{rest!r}: there are {'; '.join(known)}")
            names.append(name)
            rest = rest[len(name) + 1 :]
        return names

    return read


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def make_parser() -> argparse.ArgumentParser:
    parser = command("frontier", __doc__, allow_abbrev=False)
    parser.add_argument("--on", choices=["simulator", "servers"], default="simulator")
    mode_arguments(
        parser.add_argument_group("modes, and with --on servers how they are started"), workers=False
    )
    cells = parser.add_argument_group("cells")
    cells.add_argument("--workers", type=_integers, default="2,4", metavar="N,…")
    cells.add_argument(
        "--regimes",
        type=_names(REGIMES),
        default=",".join(REGIMES),
        metavar="NAME,…",
        help=", ".join(REGIMES),
    )
    cells.add_argument(
        "--workloads",
        type=_names(WORKLOADS),
        default=",".join(WORKLOADS),
        metavar="NAME,…",
        help="; ".join(WORKLOADS),
    )
    cells.add_argument("--slower", type=float, default=1.0, metavar="X", help="all targets times this")
    cells.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="all lengths times this (servers)"
    )
    search = parser.add_argument_group("search")
    search.add_argument("--good", type=float, default=WANTED, metavar="SHARE", help="share to keep (0.9)")
    search.add_argument("--start", type=float, default=8.0, metavar="R", help="rate that is tried first (8)")
    search.add_argument("--precision", type=float, default=0.01, metavar="SHARE", help="of the rate (0.01)")
    search.add_argument("--seconds", type=float, default=30.0, metavar="S", help="that count, of a draw (30)")
    search.add_argument("--warm-up", type=float, default=20.0, metavar="S", help="before those (20)")
    search.add_argument("--seeds", type=_integers, default="1,2", metavar="N,…", help="draws of a rate (1,2)")
    search.add_argument("--jobs", type=int, default=1, metavar="N", help="processes, with the simulator (1)")
    output = parser.add_argument_group("results")
    output.add_argument("--results", type=Path, default=_RESULTS, metavar="FOLDER")
    output.add_argument("--name", metavar="NAME", help="NAME.json and NAME.png (frontier-simulator)")
    return parser


if __name__ == "__main__":
    main()
