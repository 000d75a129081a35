"""Seconds and CPU seconds of a start of the router on this machine, by phase and by process.

CPU seconds hardly depend on what else runs on the machine; wall time does.

python -m benchmarks.start_up --runs 3 -- --mode disagg --model smollm2 --prefill-workers 1 --decode-workers 1

With --kill, of a router that finds the workers of one that was killed before; with `ray start --head` before:

python -m benchmarks.start_up --runs 10 --kill -- --model smollm2 --ray-address auto
"""

from __future__ import annotations

import argparse
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.lib.command import command

_INTERVAL_S: Final = 0.02
_READY: Final = re.compile(r" is ready after ")
_TIMEOUT_S: Final = 600.0


class StartFailed(Exception):
    """The router ended, or took too long; the message is its output."""


@dataclass(slots=True)
class StartUp:
    """One start, from exec to the line that says that the model is ready."""

    wall_s: float = 0.0
    lines: list[tuple[float, str]] = field(default_factory=list)
    """The router's output, with the seconds after exec."""
    cpu_s: dict[str, float] = field(default_factory=dict)
    """User and system time by process title; processes that ended count up to their last sample."""
    first_seen_s: dict[str, float] = field(default_factory=dict)

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())


def measure(flags: list[str], *, kill: bool = False) -> StartUp:
    """Start `router` with these flags, stop it when it is ready. Raises StartFailed.

    `kill`: by SIGKILL, so that its workers stay, if it has joined a Ray.
    """
    command = [sys.executable, "-m", "router.command.main", *flags, "--http-port", "0", "--grpc-port", "0"]
    began = time.monotonic()
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
    )
    start = StartUp()
    ready = threading.Event()
    assert process.stderr is not None
    reader = threading.Thread(target=_read, args=(process.stderr, began, start, ready))
    reader.start()
    try:
        _sample(psutil.Process(process.pid), began, start, ready)
    finally:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait()
        reader.join()
    if not start.wall_s:
        raise StartFailed("\n".join(line for _, line in start.lines))
    return start


def _read(output: IO[str], began: float, start: StartUp, ready: threading.Event) -> None:
    for line in output:
        start.lines.append((round(time.monotonic() - began, 2), line.rstrip()))
        if _READY.search(line):
            start.wall_s = time.monotonic() - began
            ready.set()
    ready.set()


def _sample(router: psutil.Process, began: float, start: StartUp, ready: threading.Event) -> None:
    """Follow the tree's CPU times until `ready`. A process has the title that it had last."""
    titles: dict[int, str] = {}
    seconds: dict[int, float] = {}
    seen: dict[int, float] = {}
    while not (over := ready.wait(_INTERVAL_S)) or seconds:
        for process in [router, *_children(router)]:
            try:
                times, title = process.cpu_times(), _title(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue  # it ended between the calls
            seconds[process.pid], titles[process.pid] = times.user + times.system, title
            seen.setdefault(process.pid, time.monotonic() - began)
        if over or time.monotonic() - began > _TIMEOUT_S:
            break
    sums: dict[str, float] = defaultdict(float)
    for pid, spent in seconds.items():
        sums[titles[pid]] += spent
        start.first_seen_s[titles[pid]] = min(
            start.first_seen_s.get(titles[pid], seen[pid]), round(seen[pid], 2)
        )
    start.cpu_s = {title: round(spent, 2) for title, spent in sums.items()}


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return root.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _title(process: psutil.Process) -> str:
    """Without paths and arguments: `ray::DecodeWorker`, `gcs_server`, `dashboard/agent.py`."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    program = Path(words[0]).name
    if program.startswith("python"):
        named = [word for word in words[1:] if not word.startswith("-")]
        return "/".join(Path(named[0]).parts[-2:]) if named else program
    return program


def main() -> None:
    options = make_parser().parse_args()
    flags = options.flags[1:] if options.flags[:1] == ["--"] else options.flags
    if options.kill and "--ray-address" not in flags:
        sys.exit("--kill needs --ray-address: a router's own Ray ends with it, and so do its workers")
    try:
        if options.kill:
            measure(flags, kill=True)
        starts = [measure(flags, kill=options.kill) for _ in range(options.runs)]
    except StartFailed as error:
        sys.exit(f"the router did not start:\n{error}")
    console = Console()
    console.print(f"router {shlex.join(flags)}", highlight=False)
    for at, line in starts[-1].lines:
        console.print(f"{at:6.2f} s  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(_table(starts))


def _table(starts: list[StartUp]) -> Table:
    table = Table("process", "first seen after, s", "CPU, s", title=f"medians of {len(starts)} starts")
    titles = {title for start in starts for title in start.cpu_s}
    rows = [(_median([s.first_seen_s.get(t, 0.0) for s in starts]), t) for t in titles]
    for seen, title in sorted(rows):
        table.add_row(title, f"{seen:.1f}", f"{_median([s.cpu_s.get(title, 0.0) for s in starts]):.2f}")
    table.add_section()
    table.add_row("all", "", f"{_median([start.total_cpu_s for start in starts]):.2f}")
    walls = [start.wall_s for start in starts]
    table.add_row("wall time to ready", "", f"{_median(walls):.2f}")
    table.add_row("longest", "", f"{max(walls):.2f}")
    return table


def _median(values: list[float]) -> float:
    return statistics.median(values)


def make_parser() -> argparse.ArgumentParser:
    parser = command("start_up", __doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kill", action="store_true", help="kill each router; the first one is not measured")
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="flags of router, after --")
    return parser


if __name__ == "__main__":
    main()
