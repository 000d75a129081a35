"""A cluster of deploy/cluster.yaml, run by an operator: three nodes, and the operator's own machine."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
import yaml

from tests.cluster.machines import HOME, USER, Machine, Machines
from tests.faults.small_model import Question

__all__ = ["NODES", "ROOT", "Stream", "ThreeNodes", "build_wheel", "commands"]

ROOT: Final = Path(__file__).resolve().parents[2]
NODES: Final = {"head": "10.0.0.10", "w1": "10.0.0.11", "w2": "10.0.0.12"}
ADDRESSES: Final = {"ops": "10.0.0.2", **NODES}
URL: Final = f"http://{NODES['head']}:30000"
READY_S: Final = 240.0
_CLONE_NEWNET: Final = 0x40000000
_COMMAND: Final = re.compile(r"#   ((?:make|ray|prometheus|setsid) .*)")


def commands(file: Path) -> list[str]:
    """The commands in the comments of a file, as they stand."""
    return [match.group(1) for line in file.read_text().splitlines() if (match := _COMMAND.match(line))]


def build_wheel(folder: Path) -> Path:
    """Runs `make wheel` in a copy of what git would track; returns the folder with the wheel."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    make = ["make", "--old-file=setup", "wheel", f"BIN={Path(sys.executable).parent}"]
    subprocess.run(make, cwd=folder, check=True)
    return folder / "dist"


@dataclass
class Stream:
    """What a client saw."""

    text: str = ""
    stamps: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def longest_pause(self) -> float:
        return max((b - a for a, b in zip(self.stamps, self.stamps[1:], strict=False)), default=0.0)


class ThreeNodes:
    """Use as a context manager, for the machines and the clients' threads."""

    def __init__(self, wheel: Path, model: Path, **settings: object) -> None:
        """`settings` are the operator's edits of deploy/router.yaml, besides the model."""
        self._wheel = wheel
        self._settings = {"model": str(model), **settings}
        shared = [path for path in (Path(sys.prefix), model) if path.exists()]
        self.machines = Machines(ADDRESSES, shared)
        self.clients: ThreadPoolExecutor

    def __enter__(self) -> ThreeNodes:
        self.machines.__enter__()
        try:
            for machine in self.machines:
                _prepare(machine)
            self._check_out(self.ops)
            space = self.ops.namespace
            self.clients = ThreadPoolExecutor(16, initializer=_enter, initargs=(space,))
        except BaseException:
            self.machines.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.clients.shutdown(wait=False, cancel_futures=True)
        self.machines.__exit__()

    @property
    def ops(self) -> Machine:
        return self.machines["ops"]

    @property
    def nodes(self) -> list[Machine]:
        return [self.machines[name] for name in NODES]

    def type(self, command: str, *, timeout_s: float = 300.0, check: bool = True) -> str:
        """Runs a command as the operator does, in the checkout; returns its output."""
        print(f"$ {command}", flush=True)
        done = self.ops.run(
            f"exec bash --login -c {_quoted(f'cd ~/checkout; {command}')} 2>&1",
            user=USER,
            timeout_s=timeout_s,
            check=check,
        )
        return done.stdout

    def edit(self, **settings: object) -> None:
        """Changes the operator's router.yaml."""
        file = Path(f"/proc/{self.ops.pid}/root{HOME}/checkout/deploy/router.yaml")
        file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | settings))

    def get(self, path: str) -> httpx.Response:
        return self.clients.submit(httpx.get, URL + path, timeout=10).result()

    def is_ready(self) -> bool:
        try:
            return self.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def wait_until(self, what: Callable[[], Any], within_s: float = READY_S) -> Any:
        """The first true value of `what()`."""
        deadline = time.monotonic() + within_s
        while not (value := what()):
            assert time.monotonic() < deadline, self.log()[-6000:]
            time.sleep(0.2)
        return value

    def wait_for_workers(self, within_s: float = READY_S) -> None:
        """Until all of them are in service."""
        self.wait_until(lambda: self.states() and set(self.states().values()) == {"ready"}, within_s)

    def states(self) -> dict[str, str]:
        """Of the workers, as `router workers` says on the head."""
        done = self.machines["head"].run("~/baton/venv/bin/router workers", user=USER, check=False)
        rows = (line.split() for line in done.stdout.splitlines())
        return {row[0]: " ".join(row[5:]) for row in rows if len(row) > 5}

    def homes(self) -> dict[str, str]:
        """Names of nodes by worker, from the line that the router wrote at its last start."""
        line = re.findall(r"^workers: (.* on .*)$", self.log(), re.MULTILINE)[-1]
        names = {address: name for name, address in NODES.items()}
        homes = {}
        for part in line.split("; "):
            workers, address = re.fullmatch(r"(.*) on .* \(([\d.]+)\)", part).groups()  # type: ignore[union-attr]
            homes |= dict.fromkeys(workers.split(", "), names[address])
        return homes

    def log(self) -> str:
        """The router's."""
        return self.machines["head"].run("cat ~/baton/router.log || true", user=USER).stdout

    def pages(self, worker: str) -> dict[str, int]:
        """Pages of a worker's pool by state; empty if it cannot be asked."""
        for target in self.get("/sd/workers").json()[0]["targets"]:
            try:
                text = self.clients.submit(httpx.get, f"http://{target}/metrics", timeout=5).result().text
            except httpx.HTTPError:
                continue
            if f'worker="{worker}"' in text:
                found = re.findall(r'^baton_kv_pages{.*state="(\w+)".*} (\S+)$', text, re.MULTILINE)
                return {state: int(float(count)) for state, count in found}
        return {}

    def ask(self, question: Question) -> Stream:
        """Waits for the whole answer."""
        return self.stream([question])[0].result()

    def stream(self, questions: Sequence[Question]) -> list[Future[Stream]]:
        """Asks all at once. Each result is there when its stream is over."""
        return [future for future, _ in self.watch(questions)]

    def watch(self, questions: Sequence[Question]) -> list[tuple[Future[Stream], Stream]]:
        """The same; the streams grow while they are watched."""
        streams = [Stream() for _ in questions]
        return [
            (self.clients.submit(_ask, question, stream), stream)
            for question, stream in zip(questions, streams, strict=True)
        ]

    def _check_out(self, ops: Machine) -> None:
        """The operator's machine: the deploy folder, the wheel, the ssh key, and settings edited."""
        private = Path(self.machines.key).read_text()
        ops.run(
            f"mkdir -p ~/.ssh ~/checkout/dist; umask 077; echo '{private}' > ~/.ssh/id_ed25519", user=USER
        )
        root = Path(f"/proc/{ops.pid}/root{HOME}/checkout")
        shutil.copytree(ROOT / "deploy", root / "deploy")
        shutil.copytree(self._wheel, root / "dist", dirs_exist_ok=True)
        self.edit(**self._settings)
        ops.run(f"chown -R {USER}: {HOME}")


def _prepare(machine: Machine) -> None:
    """What pip would install in some minutes: an environment that finds the packages of this one."""
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


def _ask(question: Question, stream: Stream) -> Stream:
    body = {
        "prompt": question.prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        with httpx.stream("POST", f"{URL}/v1/completions", json=body, timeout=200) as response:
            if response.status_code != 200:
                stream.error = f"{response.status_code} {response.read()[:500]!r}"
                return stream
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = orjson.loads(line[6:])
                if "error" in chunk:
                    stream.error = str(chunk["error"])
                    return stream
                stream.stamps.append(time.monotonic())
                stream.text += chunk["choices"][0]["text"]
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {error}"
    return stream


def _enter(namespace: str) -> None:
    """The sockets of this thread are those of that machine from now on."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        assert libc.setns(file.fileno(), _CLONE_NEWNET) == 0


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
