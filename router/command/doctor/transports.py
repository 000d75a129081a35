"""`router doctor --transports`: bandwidth and CPU time of each UCX transport of this machine.

Two processes per row, as for the rows of links, but polled as a worker's transfer thread polls, so that CPU
time is that of moving the bytes and not of waiting for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.command.doctor.end_process import EndProcess, LinkFailed, WriteRate, rate_between
from router.command.doctor.report import Finding, ok, warn

_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.0002
"""Between two polls of a worker's transfer thread."""
_BLOCK: Final = 64 << 20
_INFINIBAND: Final = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class TransportCandidate:
    name: str
    """How UCX names it in its choice."""
    tls: str
    """UCX_TLS. Every one has tcp or InfiniBand, over which UCX notices that a peer has died."""
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Cost:
    rate: WriteRate
    writer_cpu_s: float
    reader_cpu_s: float

    def __str__(self) -> str:
        rate, gigabytes = self.rate, self.rate.written / 1e9
        return (
            f"{rate.bytes_per_s / 1e9:.1f} GB/s, 64 MiB in {1000 * _BLOCK / rate.bytes_per_s:.1f} ms;"
            f" CPU seconds per GB: {self.writer_cpu_s / gigabytes:.2f} to write,"
            f" {self.reader_cpu_s / gigabytes:.2f} to receive; by {rate.path}"
        )


def candidates(*, has_infiniband: bool, has_gpu: bool) -> Iterator[TransportCandidate]:
    if has_infiniband:
        yield TransportCandidate("rc", "rc")
    yield TransportCandidate("cma", "tcp,cma")
    yield TransportCandidate("tcp", "tcp")
    yield TransportCandidate("posix", "tcp,posix")
    yield TransportCandidate("sysv", "tcp,sysv")
    if has_gpu:
        yield TransportCandidate("cuda_ipc", "tcp,cuda_copy,cuda_ipc", "cuda:0")
        yield TransportCandidate("tcp", "tcp,cuda_copy", "cuda:0")


def check(*, has_gpu: bool, environment: Mapping[str, str]) -> Iterator[Finding]:
    """`environment`: of --worker-env, in which each row sets UCX_TLS."""
    has_infiniband = _INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())
    for candidate in candidates(has_infiniband=has_infiniband, has_gpu=has_gpu):
        try:
            yield check_cost(candidate, _measure(candidate, environment))
        except LinkFailed as error:
            yield warn(_name(candidate), f"cannot be used: {error}", f"leave UCX_TLS={candidate.tls} out")


def check_cost(candidate: TransportCandidate, cost: Cost) -> Finding:
    if candidate.name not in cost.rate.path:
        return warn(
            _name(candidate),
            f"not used for one-sided writes: UCX writes by {cost.rate.path}",
            "UCX's shared memory is for memory that UCX allocates and has no peer errors; cma copies between"
            " processes directly",
        )
    return ok(_name(candidate), str(cost))


def _name(candidate: TransportCandidate) -> str:
    return candidate.name if candidate.device == "cpu" else f"gpu {candidate.name}"


def _measure(candidate: TransportCandidate, environment: Mapping[str, str]) -> Cost:
    """Raises LinkFailed."""
    deadline = time.monotonic() + _PATIENCE_S
    settings = {**environment, "UCX_TLS": candidate.tls}
    with (
        closing(EndProcess("writer", candidate.device, environment=settings, pause_s=_POLL_S)) as writer,
        closing(EndProcess("reader", candidate.device, environment=settings, pause_s=_POLL_S)) as reader,
    ):
        rate = rate_between(writer, reader, deadline)
        reader_cpu_s = reader.cpu_s(deadline)
        return Cost(rate, writer.cpu_s(deadline), reader_cpu_s)
