"""Tensors as safetensors files have them: an 8-byte length, a JSON header, the data. A folder in which some
are replaced. Does not import torch.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.model_config.errors import WeightsError
from engine.modeling.loader.weight_files import INDEX, check_whole, weight_files

_HEADER_LENGTH: Final = struct.Struct("<Q")
_ALIGNMENT: Final = 8
"""Bytes, of the data."""
_PIECE: Final = 1 << 20
_NEW: Final = "new.safetensors"
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file."""

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


def as_file(tensors: Iterable[StoredTensor]) -> Iterator[bytes]:
    """The bytes of a safetensors file with these tensors, wherever they are now."""
    tensors, header, at = list(tensors), dict[str, Any](), 0
    for tensor in tensors:
        size = tensor.end - tensor.begin
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    head = json.dumps(header).encode()
    head = head.ljust(-(-len(head) // _ALIGNMENT) * _ALIGNMENT)
    yield _HEADER_LENGTH.pack(len(head)) + head
    for tensor in tensors:
        with tensor.file.open("rb") as opened:
            opened.seek(tensor.begin)
            left = tensor.end - tensor.begin
            while left:
                piece = opened.read(min(left, _PIECE))
                if not piece:
                    raise WeightsError(f"{tensor.file} has become shorter")
                left -= len(piece)
                yield piece


def write_file(file: Path, pieces: Iterable[bytes]) -> None:
    with file.open("wb") as opened:
        for piece in pieces:
            opened.write(piece)
        opened.flush()
        os.fsync(opened.fileno())


def overlay(base: Path, tensors: Path, target: Path) -> None:
    """Make the folder `target`: `base`, with the tensors of the file `tensors` in place of those of the same
    names. That file is moved; what stays as it is are links.

    Raises WeightsError for tensors that `base` does not have, or has in another shape.
    """
    check_whole([tensors])
    new = {tensor.name: tensor for tensor in stored_tensors(tensors)}
    files = weight_files(base)
    if odd := [file.name for file in files if file.suffix != ".safetensors"]:
        raise WeightsError(f"{base} has {odd[0]}: tensors replace those of safetensors files")
    old = {file: stored_tensors(file) for file in files}
    _check(new, {tensor.name: tensor for found in old.values() for tensor in found})
    target.mkdir()
    names = dict.fromkeys(new, _NEW)
    tensors.rename(target / _NEW)
    for number, (file, found) in enumerate(old.items()):
        kept = [tensor for tensor in found if tensor.name not in new]
        name = f"kept-{number}.safetensors"
        if len(kept) == len(found):
            os.symlink(file.resolve(), target / name)
        elif kept:
            write_file(target / name, as_file(kept))
        names |= {tensor.name: name for tensor in kept}
    (target / INDEX).write_text(json.dumps({"weight_map": names}), encoding="utf-8")
    for other in base.iterdir():
        if other not in old and other.name != INDEX and other.is_file():
            os.symlink(other.resolve(), target / other.name)


def _check(new: dict[str, StoredTensor], old: dict[str, StoredTensor]) -> None:
    if unknown := sorted(new.keys() - old.keys()):
        raise WeightsError(f"the model has no tensors {', '.join(unknown[:_SHOWN])}")
    for name, tensor in new.items():
        if list(tensor.shape) != list(old[name].shape):
            raise WeightsError(f"{name} has the shape {list(tensor.shape)}, not {list(old[name].shape)}")
