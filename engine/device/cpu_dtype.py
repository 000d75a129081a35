"""The dtype of `--dtype auto` on a CPU. Imports no torch: a subprocess measures."""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_DTYPES: Final = ("bfloat16", "float32")
_FEATURES: Final = frozenset({"amx_bf16", "avx512_bf16"})
"""Without any of these, bfloat16 is emulated, at a fraction of float32's speed."""
_TIMEOUT_S: Final = 300
_CPUINFO: Final = Path("/proc/cpuinfo")


def preferred_cpu_dtype(cache: Path | None = None, cpuinfo: Path = _CPUINFO) -> str:
    """bfloat16 if the processor has instructions for it and a trial measures it to be faster, else float32.

    The trial blocks for some seconds; its result is cached on disk for this processor and version of torch.
    If it fails, the failure is logged and the result is float32.
    """
    processor = cpuinfo.read_text().partition("\n\n")[0].splitlines() if cpuinfo.exists() else []
    description = [line for line in processor if line.startswith(("model", "flags"))]
    if not _FEATURES & {word for line in description for word in line.split()}:
        return "float32"
    key = hashlib.sha256("\n".join([*description, version("torch")]).encode()).hexdigest()[:16]
    kept = (cache or _default_cache()) / f"cpu-dtype-{key}"
    if kept.is_file() and (known := kept.read_text()) in _DTYPES:
        return known
    measured = _measured()
    if measured is None:
        return "float32"
    _keep(kept, measured)
    return measured


def _measured() -> str | None:
    command = [sys.executable, "-m", "engine.modeling.layers.linear.dtype_trial"]
    try:
        trial = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("whether bfloat16 is faster here could not be measured, so float32 it is: %s", error)
        return None
    said = trial.stdout.strip()
    return said if said in _DTYPES else None


def _keep(path: Path, dtype: str) -> None:
    """Atomically. If the folder is not writable, the next start measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(dtype)
        Path(file.name).replace(path)
    except OSError as error:
        logger.info("the measured dtype is not kept: %s", error)


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "baton"
