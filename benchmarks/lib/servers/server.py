"""Context manager for a Baton server: started by its command, stopped by SIGTERM."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

import httpx
import psutil

_POLL_S = 0.2
_LAST_LINES = 25
_START_TIMEOUT_S = 600.0
"""The first start converts the model, which takes half a minute on a slow machine."""
_STOP_TIMEOUT_S = 60.0


class ServerFailed(Exception):
    """The server did not start, or did not stop as it should; the message ends with its last output."""


class BatonServer:
    """`router` with the given flags, on free ports of 127.0.0.1.

    >>> with BatonServer("--mode", "disagg", "--model", "smollm2") as server:
    ...     OpenAI(base_url=f"{server.url}/v1", api_key="none")
    """

    def __init__(self, *flags: str, http_port: int = 0, shows_output: bool = False) -> None:
        """`http_port` 0: any; `shows_output`: leave the server's output on the terminal."""
        self.port = http_port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = ["router", *flags, "--http-port", str(self.port), "--grpc-port", str(free_port())]
        self._shows_output = shows_output
        self._output: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def command_line(self) -> str:
        return shlex.join(self.command)

    @property
    def pid(self) -> int:
        """Process id of the router; its workers are below it in the process tree."""
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Return when it answers requests. Raises ServerFailed."""
        self._output = None if self._shows_output else tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._process = subprocess.Popen(
            # This interpreter's, whether or not its environment is activated or Baton installed in it.
            [sys.executable, "-m", "router.command.main", *self.command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,  # ctrl-C is ours: it must not reach the server beside our SIGTERM
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._terminate()
            raise

    def stop(self) -> float:
        """SIGTERM, and wait for a clean end. Returns the seconds that it took. Raises ServerFailed."""
        begin = time.monotonic()
        family = psutil.Process(self.pid).children(recursive=True) if self._is_running() else []
        code = self._terminate()
        if code != 0:
            raise ServerFailed(f"the server ended with status {code} after SIGTERM.{self._last_output()}")
        _, alive = psutil.wait_procs(family, timeout=2.0)
        if alive:
            pids = ", ".join(str(process.pid) for process in alive)
            raise ServerFailed(f"the server ended, but left processes behind: {pids}")
        return time.monotonic() - begin

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._terminate()  # the current error is the one to report

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        with httpx.Client(base_url=self.url, timeout=5.0, trust_env=False) as client:
            while time.monotonic() < deadline:
                if not self._is_running():
                    raise ServerFailed(f"`{self.command_line}` did not start.{self._last_output()}")
                try:
                    if client.get("/ready").is_success:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(_POLL_S)
        late = f"`{self.command_line}` was not ready in {_START_TIMEOUT_S:g} s."
        raise ServerFailed(late + self._last_output())

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _terminate(self) -> int:
        """Exit status; of a server that ignores SIGTERM, that of SIGKILL."""
        assert self._process is not None
        if self._is_running():
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _last_output(self) -> str:
        if self._output is None:
            return " See its output above."
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        return " Its last output:\n  " + "\n  ".join(lines)


def free_port() -> int:
    """A free port whose successor, by default the admin port, is free too."""
    while True:
        with socket.socket() as probe, socket.socket() as successor:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            with suppress(OSError, OverflowError):
                successor.bind(("127.0.0.1", port + 1))
                return port
