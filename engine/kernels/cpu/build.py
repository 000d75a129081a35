"""Compiles the kernels for this machine's processor once, and keeps the library in the cache folder.

They are one translation unit without torch's headers, which takes a few seconds. Nothing is downloaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from engine.kernels.compilations import COMPILATIONS

_FOLDER: Final = Path(__file__).parent
_SOURCES: Final = (*sorted(_FOLDER.glob("*.h")), _FOLDER / "kernels.cpp")
_COMPILERS: Final = ("g++", "c++")
_TARGET: Final = "BATON_CPU_TARGET"
"""Environment variable: the -march or -mcpu to compile for, instead of this processor; for tests."""
_TIMEOUT_S: Final = 300
_MESSAGE_LINES: Final = 3

# Without -ffast-math: NaN must stay NaN, and the order of sums must be kept.
_FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fno-math-errno", "-fno-trapping-math")


class BuildError(Exception):
    """The kernels cannot be compiled here; the message says why."""


def built_library(cache: Path | None = None) -> Path:
    """The compiled library, compiled now if there is none for this source, compiler and processor.

    The file appears atomically. Of concurrent processes one compiles, and the others wait.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = _compiler()
    folder = cache or _default_cache()
    library = folder / f"cpu-{_digest(compiler)}.so"
    if library.is_file():
        COMPILATIONS.note("kernels for this processor", 0.0, cached=True)
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with library.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the operating system when the process ends
            if not library.is_file():
                began = time.monotonic()
                compile_library(library)
                COMPILATIONS.note("kernels for this processor", time.monotonic() - began)
    except OSError as error:
        raise BuildError(f"{folder} cannot be written: {error}") from error
    return library


def _compiler() -> Path:
    for name in _COMPILERS:
        if found := shutil.which(name):
            return Path(found).resolve()
    raise BuildError(f"there is no compiler ({' or '.join(_COMPILERS)})")


def _digest(compiler: Path) -> str:
    """Key of a library; a cache folder may be shared by different machines."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        digest.update(source.read_bytes())
    status = compiler.stat()
    digest.update(repr((_FLAGS, str(compiler), status.st_size, status.st_mtime_ns)).encode())
    digest.update(_processor().encode() + _target().encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """The processor's name and features, as far as known."""
    description = [platform.machine(), platform.system()]
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        first = cpuinfo.read_text().partition("\n\n")[0].splitlines()
        description += [line for line in first if line.startswith(("model", "flags", "Features", "CPU "))]
    return "\n".join(description)


def _target() -> str:
    option = "-march" if platform.machine() in ("x86_64", "AMD64") else "-mcpu"
    return f"{option}={os.environ.get(_TARGET, 'native')}"


def compile_library(library: Path, *options: object) -> None:
    """Compile the kernels for this processor; `options` are the compiler's.

    Raises:
        BuildError: there is no compiler, or it fails.
    """
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        compiled, linked = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        _run(compiler, *_FLAGS, _target(), *options, "-c", _FOLDER / "kernels.cpp", "-o", compiled)
        # Linked without OpenMP: torch has already loaded its runtime, and a second one would add threads that
        # compete with torch's for the cores.
        _run(compiler, "-shared", compiled, "-o", linked)
        linked.replace(library)


def _run(*command: object) -> None:
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{arguments[0]} took longer than {_TIMEOUT_S} s") from error
    if done.returncode != 0:
        last = " ".join(done.stderr.strip().splitlines()[-_MESSAGE_LINES:])
        raise BuildError(f"{arguments[0]} failed with status {done.returncode}: {last}")


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "baton" / "kernels"
