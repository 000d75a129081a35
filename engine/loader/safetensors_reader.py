"""Reads the tensors of a safetensors folder one at a time, from one file or several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from safetensors import safe_open
from torch import Tensor

from engine.model_config.errors import WeightsError

_INDEX: Final = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The weight files: those that the index names, or the only one.

    Raises:
        WeightsError: there are none, or the index names files that do not exist.
    """
    index = folder / _INDEX
    if index.exists():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(names))]
    else:
        files = [folder / "model.safetensors"]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise WeightsError(
            f"{folder} lacks {', '.join(missing)}; "
            f"Baton reads model.safetensors, or the files that {_INDEX} lists"
        )
    return files


def read_tensors(files: list[Path], only: Callable[[str], object] = bool) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor, in CPU memory. The files are mapped: only what is used is read.

    `only`: of those whose names it is true for.
    """
    for file in files:
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118  (safe_open is no mapping)
                if only(name):
                    yield name, opened.get_tensor(name)
