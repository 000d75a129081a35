"""Builds the libraries of kernels that a machine does not have yet, all at once, while a worker starts.

One `ninja` compiles the sources of all of them, as many at a time as the machine has room for. Processes of a
machine share the results: one builds, the others wait and then find everything built.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from engine.errors import EngineError
from engine.kernels.compilations import COMPILATIONS

logger = logging.getLogger(__name__)

_JOB_BYTES: Final = 4 << 30
"""Memory of a compiler of attention kernels: 3.6 GB with heads of 256 features for Hopper."""
_LOOK_S: Final = 0.2
_SAID_S: Final = 10.0
"""Between two lines of the log."""
_SHOWN: Final = 2000

Report: TypeAlias = Callable[[str], None]
"""Called several times a second with what is being compiled, how far, and since when."""


class BuildFailed(EngineError):
    """A compiler failed, or there is none; the message has its last words."""


class KernelBuild(Protocol):
    """One library of kernels: flashinfer's `JitSpec`."""

    @property
    def is_compiled(self) -> bool:
        """Whether this machine has it, prebuilt or from an earlier start."""

    @property
    def ninja_path(self) -> Path:
        """Where `write_ninja` writes how to build it."""

    def write_ninja(self) -> None: ...


def build_missing(builds: Mapping[str, KernelBuild], folder: Path, report: Report) -> None:
    """Compile the missing `builds` in parallel. Their keys are the names that the log shows. `folder`: shared
    by the processes of this machine.

    Raises BuildFailed.
    """
    if all(build.is_compiled for build in builds.values()):
        return
    progress = _Progress(builds, report)
    with one_at_a_time(folder / "baton.lock", progress.look):
        missing = {name: build for name, build in builds.items() if not build.is_compiled}
        if missing:
            for build in missing.values():
                build.write_ninja()
            _run_ninja(folder / "baton.ninja", missing, progress.look)
            seconds = progress.seconds / len(missing)
            for name in missing:
                COMPILATIONS.note(name, seconds)
    progress.end()


class _Progress:
    def __init__(self, builds: Mapping[str, KernelBuild], report: Report) -> None:
        self._builds = {name: build for name, build in builds.items() if not build.is_compiled}
        self._report = report
        self._began = time.monotonic()
        self._said_at = self._began
        logger.info("compiling kernels, once on this machine: %s", "; ".join(self._builds))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def look(self) -> None:
        left = [name for name, build in self._builds.items() if not build.is_compiled]
        done, total = len(self._builds) - len(left), len(self._builds)
        said = f"{left[0] if left else 'done'}: {done} of {total}, {self.seconds:.0f} s"
        self._report(said)
        if time.monotonic() - self._said_at >= _SAID_S:
            self._said_at = time.monotonic()
            logger.info("compiling %s", said)

    def end(self) -> None:
        logger.info("compiled %d libraries of kernels in %.0f s", len(self._builds), self.seconds)


@contextmanager
def one_at_a_time(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Entered when no other process or thread of this machine is in it. A dead process leaves it.

    `waiting` is called now and then meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(_LOOK_S)
        yield


def _run_ninja(file: Path, builds: Mapping[str, KernelBuild], look: Callable[[], None]) -> None:
    included = [f"subninja {build.ninja_path}" for build in builds.values()]
    file.write_text("\n".join(["ninja_required_version = 1.3", *included, ""]))
    log = file.with_suffix(".log")
    command = ["ninja", "-C", str(file.parent), "-f", str(file), "-j", str(_jobs())]
    with log.open("w") as output:
        try:
            process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        except FileNotFoundError as error:
            raise BuildFailed("ninja, which builds flashinfer's kernels, is not installed") from error
        with process:
            while process.poll() is None:
                look()
                time.sleep(_LOOK_S)
    if process.returncode != 0:
        raise BuildFailed(f"flashinfer's kernels cannot be compiled ({log}): {log.read_text()[-_SHOWN:]}")


def _jobs() -> int:
    """Compilers at a time: MAX_JOBS, or as many as there are cores and memory for."""
    asked = os.environ.get("MAX_JOBS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    room = int(found.group(1)) * 1024 // _JOB_BYTES if found else 1
    return max(1, min(os.cpu_count() or 1, room))
