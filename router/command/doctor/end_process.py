"""Runs one end of a link, `link_end`, in a subprocess that sees only one GPU, like Ray's workers."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import IO, Any, Final

from common.ports import PortRange

_LEAVE_S: Final = 10.0


class LinkFailed(Exception):
    """Two processes could not write to each other; the message is the error of one of them."""


@dataclass(frozen=True, slots=True)
class WriteRate:
    """Measured by a writer."""

    path: str
    """As named by UCX."""
    bytes_per_s: float
    written: int = 0
    """Bytes, those of the warm-up included."""

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.1f} GB/s in 64 MiB writes, by {self.path}"


class EndProcess:
    """Runs until `close`. Call `peer`, `meet` and, for a writer, `link`, once each, in this order."""

    def __init__(
        self,
        role: str,
        device: str,
        *,
        gpu: int | None = None,
        host: str = "127.0.0.1",
        ports: PortRange | None = None,
        environment: Mapping[str, str] = MappingProxyType({}),
        pause_s: float = 0.0,
    ) -> None:
        """`role`: writer or reader.

        `gpu`: torch's index of the GPU that the process sees as cuda:0. `host`, `ports`: where it listens.
        `environment`: on top of this process's. `pause_s`: time between polls of the transport.
        """
        command = [sys.executable, "-m", "router.command.doctor.link_end", role, device, "--host", host]
        if ports is not None:
            command += ["--ports", str(ports)]
        if pause_s:
            command += ["--pause", str(pause_s)]
        environment = {**os.environ, **environment}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin = self._process.stdin
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last_words: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._note, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def peer(self, deadline: float) -> dict[str, Any]:
        """Connection data for the other end. Raises LinkFailed."""
        peer: dict[str, Any] = self._hear(deadline)["peer"]
        return peer

    def meet(self, peer: dict[str, Any]) -> None:
        """Pass the other end's connection data; a writer then begins to write. Raises LinkFailed."""
        try:
            self._stdin.write(json.dumps(peer) + "\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise LinkFailed(self._reason()) from None

    def link(self, deadline: float) -> WriteRate:
        """The writer's measurement. Raises LinkFailed."""
        said = self._hear(deadline)
        return WriteRate(said["path"], said["bytes_per_s"], said["written"])

    def cpu_s(self, deadline: float) -> float:
        """End its polling; the CPU time that it took since `meet`. Raises LinkFailed."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        seconds: float = self._hear(deadline)["cpu_s"]
        return seconds

    def close(self) -> None:
        """End the process; the other end must not be writing any more."""
        try:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _hear(self, deadline: float) -> dict[str, Any]:
        try:
            said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise LinkFailed("no answer in time") from None
        if said is None:
            raise LinkFailed(self._reason())
        return said

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            if line.startswith("{"):  # libraries may print other lines
                self._said.put(json.loads(line))
        self._said.put(None)

    def _note(self, stderr: IO[str]) -> None:
        for line in stderr:
            if line.strip():
                self._last_words[:] = [line.strip()]

    def _reason(self) -> str:
        for thread in self._threads:
            thread.join(1.0)
        return self._last_words[0] if self._last_words else f"it ended with {self._process.poll()}"


def rate_between(writer: EndProcess, reader: EndProcess, deadline: float) -> WriteRate:
    """Connect the two ends, and wait for the writer's measurement. Raises LinkFailed."""
    here, there = writer.peer(deadline), reader.peer(deadline)
    reader.meet(here)
    writer.meet(there)
    return writer.link(deadline)


def _visible(index: int) -> str:
    """torch's device `index` as a value of CUDA_VISIBLE_DEVICES, which may already be set."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",")[index] if seen else str(index)
