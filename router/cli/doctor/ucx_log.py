"""Reads the transports that UCX chose for writes from its log; NIXL has no API for that.

The log goes to a file of this process. If the user has configured UCX's log, that is left alone, and the
transports stay unknown.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import tempfile
from dataclasses import dataclass
from typing import Final

__all__ = ["UNKNOWN", "discard", "keep", "write_path", "write_paths_in"]

UNKNOWN: Final = "unknown"
_OPERATIONS: Final = "*memory write*"
_CELLS: Final = re.compile(r"\| (.*) \|$")
_SCOPE: Final = re.compile(r"(self|intra-node|inter-node) cfg#")
_WHOLE_PAGES: Final = re.compile(r"\d+\.\.inf")
"""The size range without an upper end."""


@dataclass(frozen=True, slots=True)
class _Log:
    fd: int
    path: str


_log: _Log | None = None


def keep() -> None:
    """Make UCX log its choices. Call it before UCX is loaded."""
    global _log
    if _log is None and not os.environ.keys() & {"UCX_PROTO_INFO", "UCX_LOG_FILE"}:
        _log = _Log(*tempfile.mkstemp(prefix="baton-ucx-", suffix=".log"))
        os.environ["UCX_PROTO_INFO"] = _OPERATIONS
        os.environ["UCX_LOG_FILE"] = _log.path


def discard() -> None:
    """Delete the log file. A process that crashes leaves it, with UCX's last messages."""
    if _log is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_log.path)


def write_path() -> str:
    """The transport of this process's writes, such as "cuda_ipc/cuda (zero-copy)"."""
    if _log is None:
        return UNKNOWN
    ctypes.CDLL(None).fflush(None)  # UCX writes to a buffered C stream
    text = os.pread(_log.fd, os.fstat(_log.fd).st_size, 0).decode(errors="replace")
    paths = write_paths_in(text)
    if len(set(paths.values())) == 1:
        return next(iter(paths.values()))
    return ", ".join(f"{scope} {path}" for scope, path in sorted(paths.items())) or UNKNOWN


def write_paths_in(text: str) -> dict[str, str]:
    """Parse UCX's log: the latest choice for "intra-node" and "inter-node" peers, if there are any."""
    paths: dict[str, str] = {}
    scope, is_write = "", False
    for line in text.splitlines():
        if (cells := _CELLS.search(line)) is None:
            continue
        match [cell.strip() for cell in cells[1].split("|")]:
            case [title] if found := _SCOPE.search(title):
                scope, is_write = found[1], False
            case [title]:
                is_write = is_write or "memory write" in title
            case [size, way, lanes] if is_write and scope != "self" and _WHOLE_PAGES.fullmatch(size):
                paths[scope] = f"{lanes} ({way})"
    return paths
