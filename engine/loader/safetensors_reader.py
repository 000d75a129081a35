"""Reads the tensors of a model folder one at a time: of one safetensors file or several, or of torch's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model_config.errors import WeightsError

_INDEX: Final = "model.safetensors.index.json"
_TORCH: Final = "pytorch_model.bin"
"""Read where there are no safetensors: EAGLE-3 heads are published so."""


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
        if not files[0].exists() and (folder / _TORCH).exists():
            return [folder / _TORCH]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise WeightsError(
            f"{folder} lacks {', '.join(missing)}; "
            f"Baton reads model.safetensors, the files that {_INDEX} lists, or {_TORCH}"
        )
    return files


def read_tensors(files: list[Path], only: Callable[[str], object] = bool) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor, in CPU memory. The files are mapped: only what is used is read.

    `only`: of those whose names it is true for.
    """
    for file in files:
        if file.name == _TORCH:
            yield from (pair for pair in _torch_tensors(file).items() if only(pair[0]))
            continue
        with safe_open(file, framework="pt", device="cpu") as opened:
            for name in opened.keys():  # noqa: SIM118  (safe_open is no mapping)
                if only(name):
                    yield name, opened.get_tensor(name)


def _torch_tensors(file: Path) -> dict[str, Tensor]:
    """Raises WeightsError if it holds anything but tensors: no code of it is run."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{file} cannot be read ({reason}); convert it to safetensors") from error
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
