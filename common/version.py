"""Baton's own version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

__all__ = ["VERSION"]

_DISTRIBUTION: Final = "baton-llm"


def _installed_version() -> str:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:
        return "0+source"  # a local version label (PEP 440): run from a source tree that was never installed


VERSION: Final = _installed_version()
