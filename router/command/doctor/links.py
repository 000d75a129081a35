"""Measures KV transfers between two processes of this machine, with our own transport."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Final

from router.command.doctor.end_process import EndProcess, LinkFailed, WriteRate, rate_between
from router.command.doctor.gpus import Gpu, Pair
from router.command.doctor.report import Finding, fail, ok, warn

_PATIENCE_S: Final = 120.0
_HOST_LEAST: Final = 1e9
_SHARE: Final = 0.7
"""Share of PCIe bandwidth. Transfers staged in host memory cross PCIe twice and stay below it."""
_CUDA_IPC: Final = (
    "UCX did not use cuda_ipc: unset UCX_TLS, or let it have cuda_ipc and cuda_copy; both processes must be"
    " in one IPC and PID namespace (Docker: --ipc=host --pid=host); see UCX_LOG_LEVEL=info"
)


def check(
    gpus: Sequence[Gpu], pairs: Sequence[Pair], environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Finding]:
    """Takes a few seconds per row, each of which starts two processes. `environment`: of --worker-env."""
    yield _row("host → host", "cpu", environment)
    for gpu in gpus[:1]:
        yield _gpu_row(gpu, gpu, environment, peer_access=True)
    for pair in pairs:
        yield _gpu_row(gpus[pair.source], gpus[pair.target], environment, peer_access=pair.peer_access)


def check_host_link(link: WriteRate) -> Finding:
    if link.bytes_per_s < _HOST_LEAST:
        return warn(
            "host → host",
            str(link),
            "less than 1 GB/s: is the machine busy? If UCX names tcp, allow cma: kernel.yama.ptrace_scope=0",
        )
    return ok("host → host", str(link))


def check_gpu_link(name: str, link: WriteRate, gpu: Gpu, *, peer_access: bool) -> Finding:
    """Compares with the measured bandwidth from the host to the receiving GPU."""
    if link.bytes_per_s >= _SHARE * gpu.pcie_bytes_per_s:
        return ok(name, str(link))
    text = f"{link}; PCIe alone gives {gpu.pcie_bytes_per_s / 1e9:.0f} GB/s, so KV is staged in host memory"
    if not peer_access:
        return warn(name, text, "these GPUs have no peer access: place prefill and decode on others")
    return fail(name, text, _CUDA_IPC)


def measure(
    device: str,
    source: int | None = None,
    target: int | None = None,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    patience_s: float = _PATIENCE_S,
) -> WriteRate:
    """Measure between two new processes, each of which sees only one GPU, like Ray's workers.

    Raises LinkFailed.
    """
    deadline = time.monotonic() + patience_s
    with (
        closing(EndProcess("writer", device, gpu=source, environment=environment)) as writer,
        closing(EndProcess("reader", device, gpu=target, environment=environment)) as reader,
    ):
        return rate_between(writer, reader, deadline)


def _row(name: str, device: str, environment: Mapping[str, str]) -> Finding:
    try:
        return check_host_link(measure(device, environment=environment))
    except LinkFailed as error:
        return _broken(name, error)


def _gpu_row(source: Gpu, target: Gpu, environment: Mapping[str, str], *, peer_access: bool) -> Finding:
    name = f"gpu {source.index} → {target.index}"
    try:
        link = measure("cuda:0", source.index, target.index, environment=environment)
    except LinkFailed as error:
        return _broken(name, error)
    return check_gpu_link(name, link, target, peer_access=peer_access)


def _broken(name: str, error: LinkFailed) -> Finding:
    return fail(name, f"no KV can be moved: {error}", "see UCX_LOG_LEVEL=info router doctor; unset UCX_*")
