"""Compares the installed Python and packages with the tested versions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Final

from router.command.doctor.report import Finding, fail, ok, warn

_PYTHONS: Final = ((3, 11), (3, 12))
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "torch": ("2.11", "2.13"),
    "transformers": ("5.17", "5.23"),
    "numpy": ("2.",),
    "ray": ("2.60",),
    "grpcio": ("1.85",),
    "protobuf": ("7.36",),
    "nixl-cu13": ("1.5",),
    "xxhash": ("3.", "4."),
}
"""Distributions, and prefixes of the tested versions."""
_ON_GPU: Final[Mapping[str, tuple[str, ...]]] = {"flashinfer-python": ("0.6.14",), "triton": ("3.6", "3.7")}
_INSTALL: Final = "install Baton with its dependencies: make setup, or pip install -e ."


def check(*, on_gpu: bool) -> Iterator[Finding]:
    yield check_python(sys.version_info[:2])
    wanted = {**_KNOWN, **(_ON_GPU if on_gpu else {})}
    yield from check_packages(wanted, {name: _version(name) for name in wanted})
    modules = {"ray": _INSTALL, "nixl_cu13": _INSTALL}
    if on_gpu:
        modules["flashinfer"] = "attention on a GPU needs it: pip install -e .[gpu]"
    for module, advice in modules.items():
        yield _import(module, advice)


def check_python(version: tuple[int, int]) -> Finding:
    text = ".".join(map(str, version))
    if version in _PYTHONS:
        return ok("python", text)
    return warn("python", f"{text} is not one of those tried", "use Python 3.11 or 3.12")


def check_packages(
    known: Mapping[str, tuple[str, ...]], found: Mapping[str, str | None]
) -> Iterator[Finding]:
    """One row for all packages with tested versions, and one for each other package."""
    good = []
    for name, tried in known.items():
        version = found[name]
        if version is None:
            yield fail(name, "is not installed", _INSTALL)
        elif not version.startswith(tried):
            versions = " or ".join(f"{start.rstrip('.')}.*" for start in tried)
            yield warn(name, f"{version} has not been tried", f"use {versions}, or run the tests first")
        else:
            good.append(f"{name} {version}")
    if good:
        yield ok("packages", ", ".join(good))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _import(module: str, advice: str) -> Finding:
    """Import the package: it may be installed while a library that it loads is missing."""
    try:
        importlib.import_module(module)
    except Exception as error:
        return fail(module, f"cannot be imported: {type(error).__name__}: {error}", advice)
    return ok(module, "can be imported")
