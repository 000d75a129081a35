"""Checks the operating system's limits: shared memory, open files, locked memory, ports."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Final

from common.cpu_times import CpuTimes, usable_cores
from router.command.doctor.report import Finding, fail, ok, warn
from router.command.preflight import PortTaken, check_free

_GIB: Final = 1 << 30
_SHM_LEAST: Final = 256 << 20
"""For Ray's object store, which is nearly empty, and UCX's queues."""
_FILES_LEAST: Final = 4096
_CORES_S: Final = 0.5
"""For which other programs' use of the cores is observed."""
_CORES_USED: Final = 0.25


def check(addresses: Mapping[str, tuple[str, int]]) -> Iterator[Finding]:
    """`addresses`: host and port by flag."""
    yield check_shm(shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0)
    yield check_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    before = CpuTimes.now()
    time.sleep(_CORES_S)
    yield check_cores(usable_cores(), before, CpuTimes.now())
    yield check_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1], os.path.isdir("/dev/infiniband"))
    yield from _ports(addresses)


def check_shm(free: int) -> Finding:
    text = f"{free / _GIB:.1f} GiB free"
    if free < _SHM_LEAST:
        return fail("/dev/shm", text, "Ray keeps its object store there; in Docker: --shm-size=1g")
    return ok("/dev/shm", text)


def check_files(hard: int) -> Finding:
    """Judge the hard limit, to which the router raises its own."""
    if hard != resource.RLIM_INFINITY and hard < _FILES_LEAST:
        return warn(
            "open files",
            f"at most {hard} clients and workers",
            "raise the hard limit: ulimit -Hn 65536, or LimitNOFILE= in systemd",
        )
    return ok("open files", "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}")


def check_cores(usable: int, before: CpuTimes | None, after: CpuTimes | None) -> Finding:
    """Judge what other programs use of them, between two observations."""
    if before is None or after is None:
        return warn(
            "CPU cores",
            f"{usable}; what other programs use of them cannot be observed",
            "on a CPU, keep them free for the workers or lower --worker-cpus (docs/tuning.md)",
        )
    others = after.others_since(before)
    if others > _CORES_USED:
        return warn(
            "CPU cores",
            f"{usable}, of which other programs use {others:.1f}",
            "workers on a CPU compute with fewer threads meanwhile; nothing to do on a GPU (docs/tuning.md)",
        )
    return ok("CPU cores", f"{usable}, of which other programs use {others:.1f}")


def check_memlock(hard: int, has_infiniband: bool) -> Finding:
    """Only InfiniBand needs to lock the KV pool in memory."""
    if hard == resource.RLIM_INFINITY:
        return ok("locked memory", "no limit")
    text = f"at most {hard / _GIB:.2f} GiB"
    if has_infiniband:
        return fail(
            "locked memory",
            f"{text}, and InfiniBand must lock the whole KV pool",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in systemd; in Docker: --ulimit memlock=-1",
        )
    return ok("locked memory", f"{text}; there is no InfiniBand to need more")


def _ports(addresses: Mapping[str, tuple[str, int]]) -> Iterator[Finding]:
    free = []
    for flag, (host, port) in addresses.items():
        try:
            check_free(flag, host, port)
        except PortTaken as error:
            yield fail("ports", str(error), f"use another {flag}")
        else:
            free.append(f"{flag} {port}")
    if free:
        yield ok("ports", "free: " + ", ".join(free))
