"""A cluster of deploy/cluster.yaml on simulated machines: three nodes, and the operator's own machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from scripts.cluster.clients import Question, Stream, ask
from scripts.cluster.machines import HOME, USER, Machine, Machines
from scripts.cluster.namespaces import enter_network

__all__ = ["DEPLOY", "NODES", "ThreeNodes", "Worker", "build_wheel", "command_with", "commands"]

ROOT: Final = Path(__file__).resolve().parents[2]
DEPLOY: Final = ROOT / "deploy"
NODES: Final = {"head": "10.0.0.10", "w1": "10.0.0.11", "w2": "10.0.0.12"}
ADDRESSES: Final = {"ops": "10.0.0.2", **NODES}
READY_S: Final = 240.0
_MOST_STREAMS: Final = 16
_LOG_CHARS: Final = 6000
_WORKER: Final = re.compile(
    r"(?P<worker>\S+) +\w+ +(?P<requests>\d+) requests"
    r"  (?:pid (?P<pid>\d+) on (?P<host>\S+)|no process)  (?P<state>.*)"
)
_COMMAND: Final = re.compile(r"#   ((?:make|ray|prometheus|setsid) .*)")


def commands(file: Path) -> list[str]:
    """The commands in the comments of a file, as they stand."""
    return [match.group(1) for line in file.read_text().splitlines() if (match := _COMMAND.match(line))]


def command_with(*words: str) -> str:
    """The one command in the comments of deploy/cluster.yaml that contains all of `words`."""
    (found,) = [line for line in commands(DEPLOY / "cluster.yaml") if all(word in line for word in words)]
    return found


def build_wheel(folder: Path) -> Path:
    """Runs `make wheel` in a copy, below `folder`, of what git would track. Returns the wheel's folder."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    make = ["make", "--old-file=setup", "wheel", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(make, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "dist"


@dataclass(frozen=True, slots=True)
class Worker:
    node: str
    """Name of its node; empty while it has no process."""
    pid: int
    """There; 0 while it has no process."""
    requests: int
    state: str


class ThreeNodes:
    """Context manager: starts the machines, with nothing of the cluster running on them."""

    def __init__(
        self, wheel: Path, model: Path, echo: Callable[[str], None] = print, **settings: object
    ) -> None:
        """`echo` is told each command that the operator types. `settings` are the operator's edits of
        deploy/router.yaml, besides the model."""
        self._wheel = wheel
        self._echo = echo
        self._settings = {"model": str(model), "host": "0.0.0.0", **settings}
        self.machines = Machines(ADDRESSES, [Path(sys.prefix), model])
        self.typed: list[str] = []
        """Commands, in order."""
        self._clients: ThreadPoolExecutor

    def __enter__(self) -> ThreeNodes:
        self.machines.__enter__()
        try:
            for machine in self.machines:
                _prepare(machine)
            self._check_out(self.ops)
            space = self.ops.namespace
            self._clients = ThreadPoolExecutor(_MOST_STREAMS, initializer=enter_network, initargs=(space,))
        except BaseException:
            self.machines.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.shutdown(wait=False, cancel_futures=True)
        self.machines.__exit__()  # which ends what the clients still read

    @property
    def ops(self) -> Machine:
        return self.machines["ops"]

    @property
    def nodes(self) -> list[Machine]:
        return [self.machines[name] for name in NODES]

    def type(self, command: str, *, timeout_s: float = 300.0, check: bool = True, quiet: bool = False) -> str:
        """Runs a command as the operator does, in the checkout. Returns its output, stderr included."""
        if not quiet:
            self._echo(f"$ {command}")
        self.typed.append(command)
        done = self.ops.run(
            f"exec bash --login -c {_quoted(f'cd ~/checkout; {command}')} 2>&1",
            user=USER,
            timeout_s=timeout_s,
            check=check,
        )
        return done.stdout

    def edit(self, **settings: object) -> None:
        """Changes the operator's router.yaml."""
        self.edit_file("router.yaml", **settings)

    def edit_file(self, name: str, **settings: object) -> None:
        """Changes the operator's file of that name in deploy/."""
        file = Path(f"/proc/{self.ops.pid}/root{HOME}/checkout/deploy/{name}")
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))

    def get(self, path: str, node: str = "head") -> httpx.Response:
        """Ask the router on that node."""
        return self._clients.submit(httpx.get, _url(node) + path, timeout=10).result()

    def is_ready(self, node: str = "head") -> bool:
        """Whether the router on that node is."""
        try:
            return self.get("/ready", node).status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until(self, what: Callable[[], Any], within_s: float = READY_S) -> Any:
        """The first true value of `what()`. Raises TimeoutError, with the end of the router's log."""
        deadline = time.monotonic() + within_s
        while not (value := what()):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"after {within_s:g} s; the router's log ends with:\n{self.log()[-_LOG_CHARS:]}"
                )
            time.sleep(0.2)
        return value

    def wait_for_workers(self, within_s: float = READY_S) -> None:
        """Waits until every worker is in service. Raises TimeoutError."""
        self.wait_until(lambda: {worker.state for worker in self.workers().values()} == {"ready"}, within_s)

    def active_nodes(self) -> int:
        """As `ray status` counts them."""
        text = self.type(command_with("ray status"), quiet=True)
        active = text.partition("Active:")[2].partition("Pending:")[0]
        return sum(int(count) for count in re.findall(r"^ *(\d+) ", active, re.MULTILINE))

    def mend(self, node: Machine) -> None:
        """Restores the link of a node that Ray took for dead, and waits until every worker is in service."""
        dead = set(node.processes("raylet/raylet"))
        self.machines.mend(node.name)

        def is_back() -> bool:
            raylets = set(node.processes("raylet/raylet"))
            return bool(raylets - dead) and not raylets & dead and self.active_nodes() == len(NODES)

        self.wait_until(is_back)
        self.wait_for_workers()

    def start_router(self, node: str, environment: str = "") -> None:
        """One more router, on another node than the head, with the settings of the head's router.

        `environment`: before the command, as in a shell.
        """
        settings = self.machines["head"].run("cat ~/baton/router.yaml", user=USER).stdout
        self.machines[node].run(
            f"cat > ~/baton/router.yaml <<'END'\n{settings}\nEND\n{environment}~/baton/service restart",
            user=USER,
        )
        self.wait_until(lambda: self.is_ready(node))

    def workers(self, node: str = "head") -> dict[str, Worker]:
        """Workers by name, as `router workers` lists them on that node; empty without an answer."""
        done = self.machines[node].run("~/baton/venv/bin/router workers", user=USER, check=False)
        names = {address: name for name, address in NODES.items()}
        rows = filter(None, map(_WORKER.fullmatch, done.stdout.splitlines()))
        return {
            row["worker"]: Worker(
                names.get(row["host"] or "", ""), int(row["pid"] or 0), int(row["requests"]), row["state"]
            )
            for row in rows
        }

    def homes(self) -> dict[str, str]:
        """Names of nodes by worker, of workers that have a session with the router."""
        return {name: worker.node for name, worker in self.workers().items() if worker.node}

    def log(self, node: str = "head") -> str:
        """The log of the router there."""
        return self.machines[node].run("cat ~/baton/router.log || true", user=USER).stdout

    def pages(self, worker: str) -> dict[str, int]:
        """Pages of a worker's pool by state; empty if the worker cannot be reached."""
        for target in self.get("/sd/workers").json()[0]["targets"]:
            try:
                text = self._clients.submit(httpx.get, f"http://{target}/metrics", timeout=5).result().text
            except httpx.HTTPError:
                continue
            if f'worker="{worker}"' in text:
                found = re.findall(r'^baton_kv_pages{.*state="(\w+)".*} (\S+)$', text, re.MULTILINE)
                return {state: int(float(count)) for state, count in found}
        return {}

    def wait_until_idle(self, workers: Collection[str], within_s: float = READY_S) -> None:
        """Until no page of their pools is held, in flight or quarantined. Raises TimeoutError."""
        self.wait_until(lambda: all(_is_idle(self.pages(worker)) for worker in workers), within_s)

    def ask(self, question: Question, node: str = "head") -> Stream:
        """Returns when the answer is complete."""
        return self.watch([question], node)[0][0].result()

    def stream(self, questions: Sequence[Question]) -> list[Future[Stream]]:
        """Asks all at once. Each future is done when its stream is over."""
        return [future for future, _ in self.watch(questions)]

    def watch(self, questions: Sequence[Question], node: str = "head") -> list[tuple[Future[Stream], Stream]]:
        """The same, through the router on `node`, with the streams themselves, which grow meanwhile."""
        streams = [Stream() for _ in questions]
        return [
            (self._clients.submit(ask, _url(node), question, stream), stream)
            for question, stream in zip(questions, streams, strict=True)
        ]

    def _check_out(self, ops: Machine) -> None:
        """Puts deploy/, the wheel and the ssh key on the operator's machine, and edits the settings."""
        private = Path(self.machines.key).read_text()
        ops.run(
            f"mkdir -p ~/.ssh ~/checkout/dist; umask 077; echo '{private}' > ~/.ssh/id_ed25519", user=USER
        )
        root = Path(f"/proc/{ops.pid}/root{HOME}/checkout")
        shutil.copytree(DEPLOY, root / "deploy")
        shutil.copytree(self._wheel, root / "dist", dirs_exist_ok=True)
        self.edit(**self._settings)
        ops.run(f"chown -R {USER}: {HOME}")


def _url(node: str) -> str:
    return f"http://{NODES[node]}:30000"


def _is_idle(pages: dict[str, int]) -> bool:
    return bool(pages) and not (pages["held"] or pages["in_flight"] or pages["quarantined"])


def _prepare(machine: Machine) -> None:
    """Makes an environment that finds the packages of this one, instead of installing them for minutes."""
    packages = sysconfig.get_path("purelib")
    machine.run(
        f"""
        set -e
        {Path(sys.executable).resolve()} -m venv --without-pip ~/baton/venv
        echo {packages} > "$(echo ~/baton/venv/lib/python*/site-packages)/prepared.pth"
        sed "1s,.*,#!$HOME/baton/venv/bin/python," {Path(sys.prefix)}/bin/ray > ~/baton/venv/bin/ray
        chmod +x ~/baton/venv/bin/ray
        mkdir -p ~/.local/bin; ln -s ~/baton/venv/bin/ray ~/.local/bin/
        """,
        user=USER,
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
