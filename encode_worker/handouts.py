"""Rows that other workers may fetch, by ticket. Used by the engine thread and by the gRPC server."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from threading import Lock
from typing import Final, NamedTuple

from torch import Tensor

_MOST_UNKNOWN: Final = 1024
"""Tickets that are asked for before their Encode is executed."""


class Encoded(NamedTuple):
    item: bytes
    """Digest of the item."""
    rows: Tensor
    """On the host."""
    weights: str
    """See `Work.weights`."""


class NoRows(Exception):
    """There are no rows for a ticket; the message says why."""


class Handouts:
    """Each ticket is given out once. A fetch may arrive before the Encode with its ticket."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[bytes, Future[Encoded]] = {}
        """Tickets of Encodes that were executed."""
        self._asked: dict[bytes, Future[Encoded]] = {}
        """Tickets that were asked for, and are not known yet."""

    def expect(self, tickets: Iterable[bytes]) -> None:
        """Rows will be there for these tickets."""
        with self._lock:
            for ticket in tickets:
                self._known[ticket] = self._asked.pop(ticket) if ticket in self._asked else Future()

    def take(self, ticket: bytes) -> Future[Encoded]:
        """The rows when they are there, or NoRows. The ticket is of no use afterwards."""
        with self._lock:
            known = self._known.get(ticket) or self._asked.get(ticket)
            if known is None and len(self._asked) < _MOST_UNKNOWN:
                known = self._asked[ticket] = Future()
        if known is None:
            known = Future()
            known.set_exception(NoRows("too many unknown tickets"))
        return known

    def taken(self, ticket: bytes) -> None:
        """The fetch of a ticket has ended."""
        with self._lock:
            self._asked.pop(ticket, None)
            if ticket in self._known:
                spent = self._known[ticket] = Future[Encoded]()
                spent.set_exception(NoRows("its rows were fetched before"))

    def give(self, ticket: bytes, encoded: Encoded) -> None:
        with self._lock:
            if (known := self._known.get(ticket)) is not None:
                with suppress(InvalidStateError):  # its fetch has ended
                    known.set_result(encoded)

    def refuse(self, ticket: bytes, reason: str) -> None:
        with self._lock:
            if (known := self._known.get(ticket)) is not None:
                with suppress(InvalidStateError):
                    known.set_exception(NoRows(reason))

    def drop(self, tickets: Iterable[bytes]) -> None:
        """Forget tickets, and the rows for them."""
        with self._lock:
            for ticket in tickets:
                if (known := self._known.pop(ticket, None)) is not None:
                    with suppress(InvalidStateError):
                        known.set_exception(NoRows("its request has ended"))
