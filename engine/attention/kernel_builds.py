"""Compilation of kernels that a machine does not have yet, while a worker starts."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, Protocol

logger = logging.getLogger(__name__)

_SOURCES: Final = 8
"""Source files of a kernel, about, which its build compiles at the same time."""


class KernelBuild(Protocol):
    """One library of kernels: flashinfer's `JitSpec`."""

    @property
    def is_compiled(self) -> bool:
        """Whether this machine has it, prebuilt or from an earlier start."""

    def build(self, verbose: bool) -> None:
        """Compile it. Waits for another process that does, and for its own compilers."""


def build_missing(builds: Mapping[str, KernelBuild], cores: int | None = None) -> None:
    """Compile those of `builds`, by what they are for a reader, that are missing; several at a time.

    `cores`: of the machine; as many builds run as use them. Raises what a build raises, when all have ended.
    """
    missing = {name: build for name, build in builds.items() if not build.is_compiled}
    if not missing:
        return
    cores = cores or os.cpu_count() or 1
    logger.info(
        "compiling %d attention kernels, once on this machine, which takes minutes: %s",
        len(missing),
        "; ".join(missing),
    )
    begin = time.monotonic()
    with ThreadPoolExecutor(max(1, cores // _SOURCES), thread_name_prefix="compile") as threads:
        ends = {threads.submit(_timed, build): name for name, build in missing.items()}
        for end in as_completed(ends):
            if end.exception() is None:
                logger.info("compiled the kernel for %s in %.0f s", ends[end], end.result())
    for end in ends:
        end.result()
    logger.info("compiled %d attention kernels in %.0f s", len(missing), time.monotonic() - begin)


def _timed(build: KernelBuild) -> float:
    begin = time.monotonic()
    build.build(False)
    return time.monotonic() - begin
