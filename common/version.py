"""Baton's own version, and a digest of its code."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_DISTRIBUTION: Final = "baton-llm"
_PACKAGES: Final = (
    "common",
    "decode_worker",
    "engine",
    "kv_transfer",
    "prefill_worker",
    "router",
    "rpc",
    "worker",
)
_CODE: Final = (".py", ".cpp", ".h", ".cu")


def _installed_version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"  # a local version label (PEP 440): run from a source tree that was never installed


VERSION: Final = _installed_version()


@cache
def build() -> str:
    """Version and digest of the installed code: equal exactly where router and workers run the same code.

    Reads some 600 files at the first call, about 30 ms.
    """
    return f"{VERSION} ({digest_of(Path(__file__).parents[1])})"


def digest_of(root: Path) -> str:
    """Digest of Baton's packages in the folder `root`, in 12 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=6)
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in _CODE:
                digest.update(f"{file.relative_to(root)}\0".encode())
                digest.update(hashlib.blake2b(file.read_bytes()).digest())
    return digest.hexdigest()
