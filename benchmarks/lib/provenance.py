"""Provenance of results: software, flags and machine, saved with them."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from benchmarks.lib.machine import describe_machine

_PACKAGES: Final = ("torch", "transformers", "flashinfer-python", "ray", "numpy")


def provenance() -> dict[str, Any]:
    """Git revision, versions, machine, and how busy it was when this was called."""
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return {
        "revision": _revision(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "machine": describe_machine(),
        "load_average": round(load, 2),
        "busy": load > cores / 2,
    }


def _revision() -> str:
    """The commit, with "+" if files were changed since; "unknown" outside of a repository."""
    root = Path(__file__).resolve().parents[2]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
