"""Encoding and bounds-checked decoding of binary message fields."""

from __future__ import annotations

import struct
from typing import Any, Final

from kv_transfer.errors import BadMessage

__all__ = ["Reader", "block"]

_LENGTH: Final = struct.Struct("<I")


def block(data: bytes) -> bytes:
    """`data` with its length in front."""
    return _LENGTH.pack(len(data)) + data


class Reader:
    """Reads fields from the front of a message; raises BadMessage at its end."""

    def __init__(self, data: bytes, offset: int = 0) -> None:
        self._data = data
        self._offset = offset

    def fields(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self.raw(layout.size))

    def raw(self, length: int) -> bytes:
        end = self._offset + length
        if end > len(self._data):
            raise BadMessage(f"the message ends {end - len(self._data)} bytes early")
        piece = self._data[self._offset : end]
        self._offset = end
        return piece

    def block(self) -> bytes:
        (length,) = self.fields(_LENGTH)
        return self.raw(length)

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError as error:
            raise BadMessage("text that is not UTF-8") from error

    def require_end(self) -> None:
        if self._offset != len(self._data):
            raise BadMessage(f"{len(self._data) - self._offset} bytes too many")
