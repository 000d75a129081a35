"""Reads the tensors of a model folder one at a time: of one safetensors file or several, or of torch's."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from engine.loader.read_ahead import Stretch, reading_ahead
from engine.model_config.errors import WeightsError
from engine.model_config.shard import WHOLE, Shard

_INDEX: Final = "model.safetensors.index.json"
_TORCH: Final = "pytorch_model.bin"
"""Read where there are no safetensors: EAGLE-3 heads are published so."""

_HEADER_LENGTH: Final = struct.Struct("<Q")


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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file: an 8-byte length, a JSON header, the data."""

    name: str
    dtype: str
    shape: Sequence[int]
    file: Path
    begin: int
    end: int


def stored_tensors(file: Path) -> list[StoredTensor]:
    """In the order in which the file has them."""
    with file.open("rb") as opened:
        (length,) = _HEADER_LENGTH.unpack(opened.read(_HEADER_LENGTH.size))
        header: dict[str, dict[str, Any]] = json.loads(opened.read(length))
    data = _HEADER_LENGTH.size + length
    found = [
        StoredTensor(name, entry["dtype"], entry["shape"], file, *(data + at for at in entry["data_offsets"]))
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    return sorted(found, key=lambda tensor: tensor.begin)


def read_tensors(
    files: list[Path], only: Callable[[str], object] = bool, share: Shard = WHOLE
) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor, in CPU memory. The files are mapped: only what is used is read.

    `only`: of those whose names it is true for. `share`: of what is read ahead into the page cache, where
    several processes of this machine read the same tensors.
    """
    for file in files:
        if file.name == _TORCH:
            yield from (pair for pair in _torch_tensors(file).items() if only(pair[0]))
    stored = [one for file in files if file.name != _TORCH for one in stored_tensors(file) if only(one.name)]
    with reading_ahead([Stretch(one.file, one.begin, one.end) for one in stored], share) as ahead:
        for file, tensors in groupby(stored, key=lambda one: one.file):
            with safe_open(file, framework="pt", device="cpu") as opened:
                for one in tensors:
                    yield one.name, opened.get_tensor(one.name)
                    ahead.used(one.end - one.begin)


def _torch_tensors(file: Path) -> dict[str, Tensor]:
    """Raises WeightsError if it holds anything but tensors: no code of it is run."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{file} cannot be read ({reason}); convert it to safetensors") from error
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
