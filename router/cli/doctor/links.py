"""How KV would really travel between two processes of this machine: through our own transport, measured."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

from router.cli.doctor.gpus import Gpu, Pair
from router.cli.doctor.report import Finding, fail, ok, warn

__all__ = ["Link", "LinkFailed", "judge_gpu_link", "judge_host_link", "look", "measure"]

_PATIENCE_S: Final = 120.0
_LEAVE_S: Final = 10.0
_HOST_LEAST: Final = 1e9
_SHARE: Final = 0.7
"""Of what PCIe gives: bytes that go by way of the host cross it twice, and stay below."""
_CUDA_IPC: Final = (
    "UCX did not use cuda_ipc: unset UCX_TLS, or let it have cuda_ipc and cuda_copy; both processes must be"
    " in one IPC and PID namespace (Docker: --ipc=host --pid=host); see UCX_LOG_LEVEL=info"
)


class LinkFailed(Exception):
    """Two processes could not write to each other; the message is what one of them said."""


@dataclass(frozen=True, slots=True)
class Link:
    path: str
    """In UCX's words."""
    bytes_per_s: float

    def __str__(self) -> str:
        return f"{self.bytes_per_s / 1e9:.1f} GB/s in 64 MiB writes, by {self.path}"


def look(gpus: Sequence[Gpu], pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Takes some seconds a row: each starts two processes."""
    yield _row("host → host", "cpu", None, None)
    for gpu in gpus[:1]:
        yield _gpu_row(gpu, gpu, peer_access=True)
    for pair in pairs:
        yield _gpu_row(gpus[pair.source], gpus[pair.target], peer_access=pair.peer_access)


def judge_host_link(link: Link) -> Finding:
    if link.bytes_per_s < _HOST_LEAST:
        return warn(
            "host → host",
            str(link),
            "less than 1 GB/s: is the machine busy? If UCX names tcp, allow cma: kernel.yama.ptrace_scope=0",
        )
    return ok("host → host", str(link))


def judge_gpu_link(name: str, link: Link, gpu: Gpu, *, peer_access: bool) -> Finding:
    """Against the measured speed of the receiving GPU's own way to the host."""
    if link.bytes_per_s >= _SHARE * gpu.pcie_bytes_per_s:
        return ok(name, str(link))
    text = f"{link}; PCIe alone gives {gpu.pcie_bytes_per_s / 1e9:.0f} GB/s, so KV goes by way of the host"
    if not peer_access:
        return warn(name, text, "these GPUs have no peer access: place prefill and decode on others")
    return fail(name, text, _CUDA_IPC)


def measure(
    device: str, source: int | None = None, target: int | None = None, *, patience_s: float = _PATIENCE_S
) -> Link:
    """Between two fresh processes, each of which sees one GPU only, as Ray's workers do.

    Raises LinkFailed.
    """
    deadline = time.monotonic() + patience_s
    with _end("writer", device, source) as writer, _end("reader", device, target) as reader:
        here, there = writer.hear(deadline)["peer"], reader.hear(deadline)["peer"]
        writer.tell(there)
        reader.tell(here)
        said = writer.hear(deadline)
        return Link(said["path"], said["bytes_per_s"])


def _row(name: str, device: str, source: int | None, target: int | None) -> Finding:
    try:
        return judge_host_link(measure(device, source, target))
    except LinkFailed as error:
        return _broken(name, error)


def _gpu_row(source: Gpu, target: Gpu, *, peer_access: bool) -> Finding:
    name = f"gpu {source.index} → {target.index}"
    try:
        link = measure("cuda:0", source.index, target.index)
    except LinkFailed as error:
        return _broken(name, error)
    return judge_gpu_link(name, link, target, peer_access=peer_access)


def _broken(name: str, error: LinkFailed) -> Finding:
    return fail(name, f"no KV can be moved: {error}", "see UCX_LOG_LEVEL=info router doctor; unset UCX_*")


class _End:
    """A process with one end of the link."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._stdin = process, process.stdin
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._last_words: list[str] = []
        self._threads = [
            threading.Thread(target=self._listen, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._note, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def tell(self, what: object) -> None:
        try:
            self._stdin.write(json.dumps(what) + "\n")
            self._stdin.flush()
        except BrokenPipeError:
            raise LinkFailed(self._reason()) from None

    def hear(self, deadline: float) -> dict[str, Any]:
        try:
            said = self._said.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise LinkFailed("no answer in time") from None
        if said is None:
            raise LinkFailed(self._reason())
        return said

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            if line.startswith("{"):  # libraries print what they like
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


@contextmanager
def _end(role: str, device: str, gpu: int | None) -> Iterator[_End]:
    environment = dict(os.environ)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = _visible(gpu)
    process = subprocess.Popen(
        [sys.executable, "-m", "router.cli.doctor.link_end", role, device],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _End(process)
    finally:
        _end_of(process)


def _end_of(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _visible(index: int) -> str:
    """torch's number `index` in the terms of CUDA_VISIBLE_DEVICES, which may be set already."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return seen.split(",")[index] if seen else str(index)
