"""Detects another distribution that installs a top-level package with the name of one of Baton's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["shadowed_packages"]

_PACKAGES: Final = ("common", "decode_worker", "engine", "kv_transfer", "prefill_worker", "rpc", "worker")
"""Those that serving imports; `router plan` alone needs `simulator`."""
_ROOT: Final = Path(__file__).resolve().parents[2]


def shadowed_packages(find: Callable[[str], ModuleSpec | None] = find_spec) -> Iterator[str]:
    """One message for each package that would be imported from another place. Imports nothing."""
    for name in _PACKAGES:
        spec = find(name)
        origin = None if spec is None else spec.origin
        if origin is None or Path(origin).resolve().parents[1] != _ROOT:
            yield (
                f"package {name!r} is found at {origin}, not in {_ROOT}: another distribution has one of"
                " this name; install Baton in a virtual environment of its own"
            )
