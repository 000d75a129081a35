"""Binary encoding of frozen dataclasses by the types of their fields, and bounds-checked decoding.

| type | bytes |
| --- | --- |
| int | 8, unsigned |
| float | 8 |
| str, bytes, tuple of int | its length in bytes, and its content; 8 bytes for each number |
| tuple of dataclasses | their number, and each |
| dataclass | its fields in order |
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from kv_transfer.errors import BadMessage

_T = TypeVar("_T")
_LENGTH: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct("<Q")
_FLOAT: Final = struct.Struct("<d")


def pack(value: Any) -> bytes:
    """Encode a dataclass."""
    kind: Any = type(value)
    encoded: bytes = _codec(kind)[0](value)
    return encoded


def unpack(kind: type[_T], data: bytes) -> _T:
    """Decode one dataclass of this type. Raises BadMessage for anything that `pack` did not produce."""
    reader = _Reader(data)
    key: Any = kind
    value: _T = _codec(key)[1](reader)
    reader.require_end()
    return value


def pack_one_of(kinds: Sequence[type], value: Any) -> bytes:
    """As `pack`, with the place of its type in `kinds` in front. Append to `kinds`, never reorder them."""
    return bytes((kinds.index(type(value)),)) + pack(value)


def unpack_one_of(kinds: Sequence[type[_T]], data: bytes) -> _T:
    """Raises BadMessage."""
    if not data or data[0] >= len(kinds):
        raise BadMessage(f"unknown message kind {data[0] if data else 'none'}")
    return unpack(kinds[data[0]], data[1:])


def block(data: bytes) -> bytes:
    """`data` with its length in front."""
    return _LENGTH.pack(len(data)) + data


class _Reader:
    """Reads fields from the front of a message; raises BadMessage at its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def raw(self, length: int) -> bytes:
        end = self._offset + length
        if end > len(self._data):
            raise BadMessage(f"the message ends {end - len(self._data)} bytes early")
        piece = self._data[self._offset : end]
        self._offset = end
        return piece

    def field(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.raw(layout.size))[0]

    def block(self) -> bytes:
        return self.raw(self.field(_LENGTH))

    def text(self) -> str:
        try:
            return self.block().decode()
        except UnicodeDecodeError as error:
            raise BadMessage("text that is not UTF-8") from error

    def numbers(self) -> tuple[int, ...]:
        data = self.block()
        if len(data) % _NUMBER.size:
            raise BadMessage("an array of numbers has an incomplete last one")
        return tuple(np.frombuffer(data, dtype="<u8").tolist())

    def require_end(self) -> None:
        if self._offset != len(self._data):
            raise BadMessage(f"{len(self._data) - self._offset} bytes too many")


_Codec = tuple[Callable[[Any], bytes], Callable[[_Reader], Any]]

_SIMPLE: Final[dict[Any, _Codec]] = {
    int: (_NUMBER.pack, lambda reader: reader.field(_NUMBER)),
    float: (_FLOAT.pack, lambda reader: reader.field(_FLOAT)),
    str: (lambda text: block(text.encode(errors="replace")), _Reader.text),
    bytes: (block, _Reader.block),
    tuple[int, ...]: (lambda numbers: block(np.array(numbers, dtype="<u8").tobytes()), _Reader.numbers),
}


@cache
def _codec(kind: Any) -> _Codec:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if get_origin(kind) is tuple:
        pack_item, read_item = _codec(get_args(kind)[0])
        return (
            lambda items: _LENGTH.pack(len(items)) + b"".join(map(pack_item, items)),
            lambda reader: tuple(read_item(reader) for _ in range(reader.field(_LENGTH))),
        )
    hints = get_type_hints(kind)
    parts = [(field.name, *_codec(hints[field.name])) for field in fields(kind)]
    return (
        lambda value: b"".join([pack_part(getattr(value, name)) for name, pack_part, _ in parts]),
        lambda reader: kind(*[read_part(reader) for _, _, read_part in parts]),
    )
