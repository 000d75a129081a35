"""The files in which a model folder keeps its weights. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from engine.model_config.errors import WeightsError

INDEX: Final = "model.safetensors.index.json"
TORCH_FILE: Final = "pytorch_model.bin"
"""Read where there are no safetensors: EAGLE-3 heads are published so."""


_LENGTH_BYTES: Final = 8
"""Size of the header's length, with which a safetensors file begins."""
_LFS_POINTER: Final = b"version https://git-lfs"


def weight_files(folder: Path) -> list[Path]:
    """The weight files: those that the index names, or the only one.

    Raises:
        WeightsError: there are none, or the index names files that do not exist.
    """
    files = named_weights(folder)
    if not files[0].exists() and not (folder / INDEX).exists() and (folder / TORCH_FILE).exists():
        return [folder / TORCH_FILE]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise WeightsError(
            f"{folder} lacks {', '.join(missing)}; "
            f"Baton reads model.safetensors, the files that {INDEX} lists, or {TORCH_FILE}"
        )
    return files


def named_weights(folder: Path) -> list[Path]:
    """The safetensors files of the index, whether they exist or not; without an index, the only one."""
    index = folder / INDEX
    if not index.exists():
        return [folder / "model.safetensors"]
    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    return [folder / name for name in sorted(set(names))]


def check_whole(files: Iterable[Path]) -> None:
    """Compare the sizes of safetensors files with their headers, in milliseconds.

    Raises:
        WeightsError: one is not as long as its header says, as after a download that was cut off.
    """
    for file in files:
        if file.suffix == ".safetensors" and (problem := _problem(file)) is not None:
            raise WeightsError(f"{file} {problem}; download or copy it again")


def _problem(file: Path) -> str | None:
    size = file.stat().st_size
    with file.open("rb") as opened:
        begin = opened.read(len(_LFS_POINTER))
        if begin == _LFS_POINTER:
            return "is a pointer of Git LFS, not the file itself (`git lfs pull` fetches it)"
        length = int.from_bytes(begin[:_LENGTH_BYTES], "little")
        if size < _LENGTH_BYTES + length:
            return f"ends within its header: it has {size:,} bytes"
        opened.seek(_LENGTH_BYTES)
        try:
            entries = json.loads(opened.read(length))
            data = max(
                (entries[name]["data_offsets"][1] for name in entries if name != "__metadata__"), default=0
            )
        except (ValueError, KeyError, TypeError, IndexError):
            return "has a header that cannot be read"
    whole = _LENGTH_BYTES + length + data
    return None if size == whole else f"has {size:,} bytes, and by its header {whole:,}"
