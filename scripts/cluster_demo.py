"""Serve a model on a cluster of three nodes, cut the link of one under load, show what its clients see.

Run by `make cluster-demo`, as root. Nodes and the operator's machine are namespaces of this machine
(scripts/cluster); the cluster is started with the commands of deploy/cluster.yaml, as on real machines.
"""

from __future__ import annotations

import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from engine.modeling.loader.checkpoint import CheckpointError, resolve
from scripts.cluster.clients import Stream
from scripts.cluster.machines import why_not
from scripts.cluster.three_nodes import NODES, ThreeNodes, Worker, build_wheel, command_with

MODEL: Final = "smollm2"
MAX_TOKENS: Final = 128
CUT_AT: Final = 16
"""Chunks that the slowest stream has received when the link is cut."""
SETTINGS: Final = {
    "device": "cpu",
    "dtype": "float32",  # in bfloat16 an answer depends on what is computed in the same step
    "worker-cpus": 1,
    "kv-pool-tokens": 16384,
    "router-timeout": 20.0,
    "worker-env": "UCX_TLS=tcp UCX_NET_DEVICES=eth0",
    "worker-ports": "11000-11031",
}
PROMPT: Final = (
    "Below is the beginning of a text for a school book. It is written in plain language, every paragraph\n"
    "is about one thing, and nothing in it is invented. Examples come from daily life.\n\n"
)
TITLES: Final = (
    "The lighthouse keeper",
    "How bread is baked",
    "The history of the bicycle",
    "How a river begins",
    "A letter to a friend",
    "The night train",
)
READY_S: Final = 600.0
FENCED_S: Final = 120.0
TICK_S: Final = 0.25
PLAIN_S: Final = 2.0
"""Between two lines of progress where there is no terminal."""
TOLD: Final = re.compile(r"\S+ (?P<time>[\d:]+)\S* WARNING \S+: (?P<text>.*)")
"""Lines of the router's log that are shown."""


class Failed(Exception):
    """The cluster did not do what this demo is there to show."""


@dataclass(frozen=True)
class Article:
    """A request."""

    title: str
    max_tokens: int = MAX_TOKENS

    @property
    def prompt(self) -> str:
        """Some pages long. Prompts with one beginning would all be sent to the worker that has it cached."""
        return f"{self.title}\n\n{PROMPT * 4}{self.title}\n\n"


ARTICLES: Final = [Article(title) for title in TITLES]


def main() -> None:
    if reason := why_not():
        sys.exit(f"cluster-demo: {reason}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        Demo(Console(highlight=False)).run()
    except KeyboardInterrupt:
        sys.exit("cluster-demo: interrupted; all processes, namespaces and mounts were removed")
    except CalledProcessError as error:
        sys.exit("\n".join([f"cluster-demo: {error}", *getattr(error, "__notes__", ())]))
    except (Failed, CheckpointError, TimeoutError) as error:
        sys.exit(f"cluster-demo: {error}")


def _interrupt(*_: object) -> None:
    """The first signal ends the demo. Later ones must not interrupt the removal of the machines."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


class Demo:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._log_lines = 0
        """Lines of the router's log that were shown or skipped."""

    def run(self) -> None:
        """Raises Failed, and what starting a cluster raises."""
        with tempfile.TemporaryDirectory(prefix="baton-demo-") as folder:
            with self._waiting_step(f"Prepare the model {MODEL} and the wheel that every node installs"):
                model = _readable_copy(resolve(MODEL).path, Path(folder) / "model")
                wheel = build_wheel(Path(folder) / "checkout")
            with ThreeNodes(wheel, model, echo=self._echo, **SETTINGS) as cluster:
                self._start(cluster)
                undisturbed = self._serve(cluster)
                survivors = self._cut(cluster, undisturbed)
                self._await_fence(cluster, survivors)
                self._mend(cluster, undisturbed)
                self._stop(cluster)
        self._console.print("All processes, namespaces and mounts are removed.")

    def _start(self, cluster: ThreeNodes) -> None:
        with self._waiting_step("Start the cluster with the commands of deploy/cluster.yaml"):
            cluster.type(command_with("get-auth-token"))
            cluster.type(command_with("ray up -y deploy"), timeout_s=READY_S)
            cluster.type(command_with("rsync-up"))
            cluster.type(command_with("service start"))
            cluster.wait_until(cluster.is_ready, READY_S)
        self._show_workers(cluster)

    def _serve(self, cluster: ThreeNodes) -> list[Stream]:
        """Answers while nothing is wrong."""
        prefill = cluster.machines[cluster.workers()["prefill-0"].node]
        before = prefill.bytes_sent()
        with self._step(f"Stream {len(ARTICLES)} answers at once"):
            streams = self._stream(cluster)
            self._require_complete(streams)
        sent = (prefill.bytes_sent() - before) / 1e6
        self._console.print(f"{prefill.name} sent {sent:.0f} MB, most of it KV for the decode workers.")
        return streams

    def _cut(self, cluster: ThreeNodes, undisturbed: Sequence[Stream]) -> list[str]:
        """Names of the workers that are left."""
        survivors: list[str] = []
        self._skip_log(cluster)

        def cut_when_all_stream(streams: Sequence[Stream]) -> None:
            if survivors or not all(len(stream.stamps) >= CUT_AT for stream in streams):
                return
            workers = cluster.workers()
            victim = busiest(workers)
            survivors[:] = [name for name in workers if name != victim]
            cluster.machines.cut(workers[victim].node)
            self._console.print(
                f"[bold red]The link of {workers[victim].node} is cut:[/] its packets are dropped."
                f" {victim} lives there, and decodes {workers[victim].requests} of {len(streams)} answers."
            )

        with self._step("The same again; in mid-stream the link of a node is cut"):
            streams = self._stream(cluster, cut_when_all_stream)
        if not survivors:
            raise Failed("a stream ended before all had begun: nothing was cut")
        self._show_log(cluster)
        self.compare(undisturbed, streams)
        return survivors

    def _await_fence(self, cluster: ThreeNodes, survivors: Sequence[str]) -> None:
        with self._waiting_step("Ray declares the node dead, and the router fences its worker"):
            cluster.wait_until(lambda: "is fenced" in cluster.log(), FENCED_S)
            cluster.wait_until_idle(survivors, FENCED_S)
        self._show_log(cluster)
        self._show_pages(cluster, survivors)

    def _mend(self, cluster: ThreeNodes, undisturbed: Sequence[Stream]) -> None:
        (node,) = cluster.machines.cut_off
        with self._waiting_step(f"Restore the link of {node.name}, and wait until every worker is ready"):
            cluster.mend(node)
        self._show_workers(cluster)
        with self._step("The same answers once more"):
            streams = self._stream(cluster)
        self.compare(undisturbed, streams)

    def _stop(self, cluster: ThreeNodes) -> None:
        with self._waiting_step("Stop"):
            cluster.type(command_with("service stop"))
            cluster.type(command_with("ray down"))

    def _stream(
        self, cluster: ThreeNodes, each_tick: Callable[[Sequence[Stream]], None] = lambda _: None
    ) -> list[Stream]:
        """Streams all answers and draws their progress; `each_tick` gets them until they are over."""
        streams = [stream for _, stream in cluster.watch(ARTICLES)]
        with self._drawn(streams) as draw:
            while not all(stream.is_over for stream in streams):
                each_tick(streams)
                draw()
                time.sleep(TICK_S)
        return streams

    @contextmanager
    def _drawn(self, streams: Sequence[Stream]) -> Iterator[Callable[[], None]]:
        if self._console.is_terminal:
            with Live(_table(streams), console=self._console, auto_refresh=False) as live:
                yield lambda: live.update(_table(streams), refresh=True)
                live.update(_table(streams), refresh=True)
            return
        drawn = time.monotonic()

        def draw() -> None:
            nonlocal drawn
            if time.monotonic() > drawn + PLAIN_S:
                drawn = time.monotonic()
                counts = "  ".join(f"{len(stream.stamps):3}" for stream in streams)
                self._console.print(f"  {self._elapsed()}  chunks received: {counts}")

        yield draw

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        """Prints a heading, and at the end how long it took."""
        self._console.print(f"\n[bold]{self._elapsed()}  {title}")
        began = time.monotonic()
        yield
        self._console.print(f"  {time.monotonic() - began:.0f} s", style="dim")

    @contextmanager
    def _waiting_step(self, title: str) -> Iterator[None]:
        """The same, with a clock on the terminal meanwhile."""
        clock = Progress(
            SpinnerColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with self._step(title), clock:
            clock.add_task(title)
            yield

    def _echo(self, command: str) -> None:
        self._console.print(f"  [green]{command}", soft_wrap=True)

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"{minutes}:{seconds:02}"

    def _skip_log(self, cluster: ThreeNodes) -> None:
        self._log_lines = len(cluster.log().splitlines())

    def _show_log(self, cluster: ThreeNodes) -> None:
        """What the router has logged about workers since the last call."""
        lines = cluster.log().splitlines()
        for told in filter(None, map(TOLD.fullmatch, lines[self._log_lines :])):
            line = f"  router {told['time']} {told['text']}"
            self._console.print(line, markup=False, style="yellow", soft_wrap=True)
        self._log_lines = len(lines)

    def _show_workers(self, cluster: ThreeNodes) -> None:
        table = Table("node", "address", "workers")
        workers = cluster.workers()
        for node, address in NODES.items():
            table.add_row(node, address, ", ".join(name for name, w in workers.items() if w.node == node))
        self._console.print(table)

    def _show_pages(self, cluster: ThreeNodes, workers: Sequence[str]) -> None:
        states = ("free", "cached", "held", "in_flight", "quarantined")
        table = Table("KV pages", *states)
        for name in workers:
            pages = cluster.pages(name)
            table.add_row(name, *(str(pages[state]) for state in states))
        self._console.print(table)

    def compare(self, undisturbed: Sequence[Stream], streams: Sequence[Stream]) -> None:
        """Raises Failed unless every answer is complete and the same as before."""
        self._require_complete(streams)
        paused = [stream.longest_pause for stream in streams if stream.longest_pause > 1.0]
        pauses = f"{len(paused)} paused, for at most {max(paused):.1f} s" if paused else "none paused"
        differing = [
            article.title
            for article, before, stream in zip(ARTICLES, undisturbed, streams, strict=True)
            if before.text != stream.text
        ]
        if differing:
            raise Failed(f"answers differ from the undisturbed ones: {', '.join(differing)}")
        self._console.print(
            f"[bold green]All {len(streams)} answers are complete and identical to the undisturbed ones;"
            f" {pauses}."
        )

    def _require_complete(self, streams: Sequence[Stream]) -> None:
        """Raises Failed if a stream ended with an error."""
        errors = [f"{a.title}: {s.error}" for a, s in zip(ARTICLES, streams, strict=True) if s.error]
        if errors:
            raise Failed("; ".join(errors))


def busiest(workers: Mapping[str, Worker]) -> str:
    """The worker with most requests on a node other than the head, which has the router. Raises Failed."""
    busy = {name: w.requests for name, w in workers.items() if w.requests and w.node not in ("", "head")}
    if not busy:
        raise Failed("no answer is being decoded on a node other than the head")
    return max(busy, key=busy.__getitem__)


def _readable_copy(model: Path, folder: Path) -> Path:
    """The nodes' user may not read root's files."""
    folder.mkdir(mode=0o755)
    for file in model.iterdir():
        shutil.copyfile(file, folder / file.name)
    return folder


def _table(streams: Sequence[Stream]) -> Table:
    now = time.monotonic()
    table = Table("request", "progress", "longest pause", box=None)
    for article, stream in zip(ARTICLES, streams, strict=True):
        done = MAX_TOKENS if stream.is_over and not stream.error else len(stream.stamps)
        silent = 0.0 if stream.is_over or not stream.stamps else now - stream.stamps[-1]
        pause = max(stream.longest_pause, silent)
        style = "red" if silent > 1.0 else "yellow" if pause > 1.0 else ""
        table.add_row(article.title, ProgressBar(MAX_TOKENS, done, width=40), f"{pause:.1f} s", style=style)
    return table


if __name__ == "__main__":
    main()
