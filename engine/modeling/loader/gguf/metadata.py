"""Metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, ReaderTensor

from engine.model_config.errors import UnsupportedModel

DIVISORS: Final = "rope_freqs.weight"
"""Divisor of each rotary frequency: llama3's scaling, without its parameters."""


class Metadata:
    """The file's key-value pairs, and the names and shapes of its tensors."""

    def __init__(self, reader: GGUFReader, tensors: Sequence[ReaderTensor]) -> None:
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.shapes = {tensor.name: [int(n) for n in reversed(tensor.shape)] for tensor in tensors}
        self.architecture = str(self.get("general.architecture"))

    def get(self, key: str) -> Any:
        """The value of `key`, or None."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def model(self, key: str) -> Any:
        """The value of `key` below the architecture's own prefix, or None."""
        return self.get(f"{self.architecture}.{key}")

    def need(self, key: str) -> Any:
        value = self.model(key)
        if value is None:
            raise UnsupportedModel(f"the GGUF file lacks {self.architecture}.{key}")
        return value

    def values(self, name: str) -> list[float]:
        """Values of a small tensor; empty without it."""
        tensor = self._tensors.get(name)
        return [] if tensor is None else [float(value) for value in tensor.data]


class _Reader(GGUFReader):
    """Reads from a plain array over the mapped file: a slice of a numpy.memmap takes three times as long, and
    the vocabulary takes hundreds of thousands of them.
    """

    @property  # type: ignore[override]
    def data(self) -> npt.NDArray[np.uint8]:
        return self._data

    @data.setter
    def data(self, mapped: npt.NDArray[np.uint8]) -> None:
        self._data = mapped.view(np.ndarray)


def open_gguf(source: Path) -> GGUFReader:
    """Raises UnsupportedModel."""
    try:
        return _Reader(source)
    except ValueError as error:
        raise UnsupportedModel(f"{source} is no GGUF file that can be read: {error}") from error
