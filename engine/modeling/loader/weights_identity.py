"""A short digest of the weights in a folder, independent of its name and path."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from engine.modeling.loader.safetensors_reader import stored_tensors
from engine.modeling.loader.weight_files import weight_files

_SAMPLE_BYTES: Final = 4096
_NUM_SAMPLES: Final = 3
_LENGTH: Final = struct.Struct("<Q")
_SAYS_NOTHING: Final = {"_name_or_path", "transformers_version"}
"""Fields of config.json that differ between copies of one model."""


def weights_identity(
    folder: Path,
    load_format: str = "auto",
    seed: int = 0,
    quantization: str | None = None,
    *,
    long_angles: bool = False,
) -> str:
    """Hex digest of config.json and of the weights; of dummy weights, of their seed.

    `quantization`: how the weights are quantized as they are loaded, if they are: with other weights, KV is
    other KV; so it is with LongRoPE's angles for long contexts (`long_angles`). The format of weights that
    are stored quantized is in config.json.

    Covers the name, dtype and shape of every tensor, and 4 KiB each of its beginning, middle and end:
    training changes almost every weight, and new tokens add rows at the end. Independent of how tensors are
    distributed over files. Reads 12 KiB per tensor. Raises WeightsError if files are missing.
    """
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, _config(folder))
    if quantization is not None:
        _add(digest, f"quantized {quantization}".encode())
    if long_angles:
        _add(digest, b"long angles")
    if load_format == "dummy":
        _add(digest, f"dummy {seed}".encode())
    else:
        tensors = {name: piece for file in weight_files(folder) for name, piece in _tensors(file)}
        for name in sorted(tensors):
            _add(digest, name.encode())
            _add(digest, tensors[name])
    return digest.hexdigest()


def _config(folder: Path) -> bytes:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return json.dumps({k: v for k, v in config.items() if k not in _SAYS_NOTHING}, sort_keys=True).encode()


def _tensors(file: Path) -> Iterator[tuple[str, bytes]]:
    """Name and digest of each tensor of a safetensors file."""
    with file.open("rb") as opened:
        for tensor in stored_tensors(file):
            digest = hashlib.blake2b(digest_size=16)
            _add(digest, json.dumps([tensor.dtype, tensor.shape]).encode())
            for sample in _samples(opened, tensor.begin, tensor.end):
                _add(digest, sample)
            yield tensor.name, digest.digest()


def _samples(opened: BinaryIO, begin: int, end: int) -> Iterator[bytes]:
    """Samples spread evenly over [begin, end), first and last bytes included; all of it if that is less."""
    if end - begin <= _NUM_SAMPLES * _SAMPLE_BYTES:
        opened.seek(begin)
        yield opened.read(end - begin)
        return
    for index in range(_NUM_SAMPLES):
        opened.seek(begin + (end - begin - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1))
        yield opened.read(_SAMPLE_BYTES)


def _add(digest: Any, piece: bytes) -> None:
    """Add a piece with its length, so that different sequences of pieces have different digests."""
    digest.update(_LENGTH.pack(len(piece)) + piece)
