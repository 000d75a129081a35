"""The `router` command as its users run it: a process of its own, talked to over HTTP."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import httpx
import psutil

STARTUP_S = 120.0
ENDS_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "TERM")
"""Before a command: a test runner that is killed leaves no router behind."""


@dataclass
class RouterProcess:
    process: subprocess.Popen[bytes]
    log: Path
    url: str = ""
    family: list[psutil.Process] = field(default_factory=list)
    """Every process below the router, as of the last look."""

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + STARTUP_S
        while time.monotonic() < deadline:
            found = re.search(r"https?://\S+?:\d+", self.text())
            if found:
                self.url = found.group()
                self.look()
                return
            assert self.process.poll() is None, self.text()
            time.sleep(0.1)
        raise TimeoutError(self.text())

    def wait_until_all_workers_are_back(self) -> None:
        deadline = time.monotonic() + STARTUP_S
        while httpx.get(f"{self.url}/ready").status_code != 200:
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.2)

    def text(self) -> str:
        return self.log.read_text()

    def look(self) -> list[psutil.Process]:
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        return self.family

    def workers(self, role: str) -> list[psutil.Process]:
        """Ray shows an actor's class as the name of its process."""
        return [p for p in self.look() if any(role in word for word in p.cmdline())]

    def complete(self, prompt: str | list[int], max_tokens: int, **options: object) -> dict:
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **options}
        response = httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)
        response.raise_for_status()
        return response.json()

    def survivors(self, within_s: float) -> list[psutil.Process]:
        """Processes that still run; not those that have ended and that init has not reaped yet."""
        return [p for p in psutil.wait_procs(self.family, timeout=within_s)[1] if not _has_ended(p)]


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def router(log: Path, *flags: str, model: str | None = "smollm2") -> Iterator[RouterProcess]:
    """Ends the router however the test went; does not wait for it to be ready.

    `model` None: `flags` say which.
    """
    command = [Path(sys.executable).with_name("router"), "--device", "cpu"]
    command += [] if model is None else ["--model", model]
    command += ["--dtype", "float32"]  # answers are compared with transformers' token by token
    ports = ["--http-port", "0", "--grpc-port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*ENDS_WITH_ITS_PARENT, *command, *ports, *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    running = RouterProcess(process, log)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class SharedRouter:
    """One router for the tests of a file, since each start takes some ten seconds of processor time.

    A test may end it: the next one gets a new one.
    """

    def __init__(self, folder: Path, *flags: str, model: str = "smollm2") -> None:
        self._folder = folder
        self._flags = flags
        self._model = model
        self._running: RouterProcess | None = None
        self._stack = ExitStack()

    def get(self) -> RouterProcess:
        """Ready."""
        if self._running is None or self._running.process.poll() is not None:
            self._stack.close()
            log = self._folder / "log"
            self._running = self._stack.enter_context(router(log, *self._flags, model=self._model))
            self._running.wait_until_ready()
        return self._running

    def __enter__(self) -> SharedRouter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
