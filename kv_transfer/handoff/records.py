"""Sidecars of pages in handoffs: records, which travel in messages beside the written pages.

The checksum of its message verifies a record. A page whose record is lost has no sidecars, and stays valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

from kv_transfer.handoff.messages import Records
from kv_transfer.handoff.next_push import NextPush
from kv_transfer.ticket import Ticket

_MESSAGE_BYTES: Final = 32 << 10
"""Largest sum of the records in a message, unless a single one is larger."""


class PageSidecars(Protocol):
    """What pages of a pool own beside their KV, as bytes. For the transfer thread."""

    @property
    def record_bytes(self) -> int: ...

    def read(self, page: int) -> bytes:
        """The record of a page: `record_bytes`, or none."""

    def put(self, page: int, record: bytes) -> None: ...


class NoSidecars:
    """`PageSidecars` of pages that own nothing but KV."""

    record_bytes = 0

    def read(self, page: int) -> bytes:
        return b""

    def put(self, page: int, record: bytes) -> None: ...


def records_of(sidecars: PageSidecars, push: NextPush) -> Iterator[Records]:
    """Messages with the records of pages that are sent. O(pages)."""
    if not sidecars.record_bytes:
        return
    found = [(push.first + i, sidecars.read(page)) for i, page in zip(push.present, push.local, strict=True)]
    found = [(index, record) for index, record in found if record]
    most = max(1, _MESSAGE_BYTES // sidecars.record_bytes)
    for begin in range(0, len(found), most):
        indices, records = zip(*found[begin : begin + most], strict=True)
        yield Records(indices, b"".join(records))


def received(sidecars: PageSidecars, ticket: Ticket, message: Records) -> dict[int, bytes] | None:
    """Records by index of the ticket's pages; None if they are not of this ticket."""
    size, indices = sidecars.record_bytes, message.pages
    if len(message.records) != size * len(indices) or max(indices, default=0) >= len(ticket.pages):
        return None
    return {index: message.records[i * size : (i + 1) * size] for i, index in enumerate(indices)}


def put(sidecars: PageSidecars, ticket: Ticket, records: Mapping[int, bytes], count: int) -> None:
    """The first `count` pages of a ticket are verified: give them their records."""
    for index, record in records.items():
        if index < count:
            sidecars.put(ticket.pages[index], record)
