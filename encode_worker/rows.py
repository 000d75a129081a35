"""Rows of an image on their way to another worker: bytes, and a digest of them with the ticket as its key."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import torch
from torch import Tensor

from rpc.baton.v1 import worker_pb2

TICKET_BYTES: Final = 16
_PART: Final = 1 << 20
_DTYPES: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class RowsExpected:
    """What the receiver knows of an item's rows before they come."""

    item: bytes
    """Digest of the item."""
    rows: int
    """As many as the prompt has placeholders for it."""
    width: int
    dtype: torch.dtype
    weights: str
    """See `Work.weights`."""


class RowsRefused(Exception):
    """Rows that must not be used: `reason` is the label of a metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parts_of(item: bytes, rows: Tensor, weights: str, ticket: bytes) -> Iterator[worker_pb2.RowsPart]:
    """Messages with the rows [n, width] of an item, on the host."""
    data = rows.contiguous().view(torch.uint8).numpy().tobytes()
    head = worker_pb2.RowsPart(
        item=item, rows=len(rows), width=rows.shape[1], dtype=_NAMES[rows.dtype], weights=weights
    )
    head.digest = _digest(head, data, ticket)
    yield head
    for first in range(0, len(data), _PART):
        yield worker_pb2.RowsPart(data=data[first : first + _PART])


def rows_of(parts: Iterator[worker_pb2.RowsPart], expected: RowsExpected, ticket: bytes) -> Tensor:
    """The rows, if they are those of the item. Raises RowsRefused, and what `parts` raises."""
    head = next(parts, worker_pb2.RowsPart())
    if head.item != expected.item:
        raise RowsRefused("item", "rows of another image")
    if head.weights != expected.weights:
        raise RowsRefused("weights", f"rows of the weights {head.weights!r}, not {expected.weights!r}")
    if (head.rows, head.width, _DTYPES.get(head.dtype)) != (expected.rows, expected.width, expected.dtype):
        what = f"[{head.rows}, {head.width}] of {head.dtype[:20]}"
        wanted = f"[{expected.rows}, {expected.width}] of {_NAMES[expected.dtype]}"
        raise RowsRefused("shape", f"rows {what} in place of {wanted}")
    size, data = expected.rows * expected.width * expected.dtype.itemsize, bytearray()
    for part in parts:
        data += part.data
        if len(data) > size:
            break
    if len(data) != size or not hmac.compare_digest(head.digest, _digest(head, data, ticket)):
        raise RowsRefused("digest", "the bytes of the rows are not those that were sent")
    return torch.frombuffer(data, dtype=expected.dtype).view(expected.rows, expected.width)


def _digest(head: worker_pb2.RowsPart, data: bytes | bytearray, ticket: bytes) -> bytes:
    rest = f"{head.rows} {head.width} {head.dtype} {head.weights} ".encode()
    digest = blake2b(head.item + rest, key=ticket, digest_size=32)
    digest.update(data)
    return digest.digest()
