"""How a worker's process ended, for its successor on the same node to report.

Nobody can ask a process after its end, and Ray reports only that a connection to it was closed. So each
process leaves a file: its pid, then the reason if it ends itself, or the name of a fatal signal, which
Python's faulthandler writes. A file without either is that of a process that could not write: it was killed.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
from pathlib import Path
from typing import Final, TextIO

_log = logging.getLogger(__name__)

_VMSTAT: Final = Path("/proc/vmstat")
_OWN_END: Final = "ended: "
_CRASH: Final = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)


class LastWords:
    """The file of this process; replaces that of the previous one."""

    def __init__(self, file: Path, vmstat: Path = _VMSTAT) -> None:
        """`vmstat`: where the kernel counts the processes that its OOM killer has ended."""
        oom_kills = _oom_kills(vmstat)
        self.predecessor = _end_of_previous(file, oom_kills)
        """How the previous process ended, in one line; empty if there was none on this node."""
        self._file: TextIO | None = None
        try:
            self._file = file.open("w")
            self._write(f"{os.getpid()} {oom_kills}\n")
            faulthandler.enable(self._file, all_threads=False)
        except OSError as error:
            _log.warning("the end of this process will not be known: %s", error)

    def say(self, reason: str) -> None:
        """Record that this process is about to end, and why."""
        self._write(f"{_OWN_END}{reason.partition(chr(10))[0]}\n")

    def _write(self, text: str) -> None:
        if self._file is not None:
            try:
                self._file.write(text)
                self._file.flush()
            except OSError as error:
                _log.warning("cannot record %r: %s", text, error)


def _end_of_previous(file: Path, oom_kills: int) -> str:
    try:
        head, _, rest = file.read_text(errors="replace").partition("\n")
        pid, kills_before = (int(number) for number in head.split())
    except (OSError, ValueError):
        return ""
    for line in rest.splitlines():
        if line.startswith(_OWN_END):
            return f"pid {pid} ended itself: {line.removeprefix(_OWN_END)}"
    if crash := _CRASH.search(rest):
        _log.error("the previous process (pid %d) crashed:\n%s", pid, rest)
        return f"pid {pid} crashed: {crash[1]}"
    killed = f"pid {pid} was killed, by SIGKILL, SIGTERM or Ray"
    if oom_kills > kills_before:
        return f"{killed}; the kernel's OOM killer ended a process on this node meanwhile"
    return killed


def _oom_kills(vmstat: Path) -> int:
    """Since the node was booted; 0 if the kernel does not tell."""
    try:
        found = re.search(r"^oom_kill (\d+)$", vmstat.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0
