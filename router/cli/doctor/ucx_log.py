"""Which ways UCX chose for writes. NIXL does not tell, but UCX says it in its log, if asked to.

The log goes to a file of this process. Where the user has asked UCX for another log, that stands, and the
ways stay unknown.
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
"""The range of sizes that has no end."""


@dataclass(frozen=True, slots=True)
class _Log:
    fd: int
    path: str


_log: _Log | None = None


def keep() -> None:
    """Has UCX explain its choices; to be called before it is loaded."""
    global _log
    if _log is None and not os.environ.keys() & {"UCX_PROTO_INFO", "UCX_LOG_FILE"}:
        _log = _Log(*tempfile.mkstemp(prefix="baton-ucx-", suffix=".log"))
        os.environ["UCX_PROTO_INFO"] = _OPERATIONS
        os.environ["UCX_LOG_FILE"] = _log.path


def discard() -> None:
    """Leaves no file behind. What a process that crashes leaves holds UCX's last words."""
    if _log is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_log.path)


def write_path() -> str:
    """How this process's writes travel, such as "cuda_ipc/cuda (zero-copy)"."""
    if _log is None:
        return UNKNOWN
    ctypes.CDLL(None).fflush(None)  # UCX writes to a C stream, and leaves it at that
    text = os.pread(_log.fd, os.fstat(_log.fd).st_size, 0).decode(errors="replace")
    paths = write_paths_in(text)
    if len(set(paths.values())) == 1:
        return next(iter(paths.values()))
    return ", ".join(f"{scope} {path}" for scope, path in sorted(paths.items())) or UNKNOWN


def write_paths_in(text: str) -> dict[str, str]:
    """From UCX's log: "intra-node" and "inter-node", as far as there are such peers, to the latest choice."""
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
