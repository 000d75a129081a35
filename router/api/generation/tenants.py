"""Tenants: the owner of each call, with its limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from router.errors import InvalidRequest, Overloaded

_log = logging.getLogger(__name__)

_RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Share:
    """This router's part of the limits that hold for all routers of the cluster together."""

    place: Callable[[], tuple[int, int]] = lambda: (0, 1)
    """Index of this router among those that are alive, and their number."""
    _known: int = 1
    """Routers at the last call."""

    def of(self, limit: int) -> int:
        """The parts of all routers add up to `limit`, but none is less than 1."""
        index, count = self.place()
        if count != self._known and count > limit:
            _log.warning(
                "a key's limit of %d requests is less than the %d routers of the cluster: each admits one,"
                " together %d; raise it, or run fewer routers",
                limit,
                count,
                count,
            )
        self._known = count
        return max(limit // count + (index < limit % count), 1)


@dataclass(slots=True, eq=False)
class Tenant:
    """The holder of one API key; without keys, all callers together."""

    name: str
    """Name in logs; not derived from the key."""
    max_requests: int | None = None
    """Concurrent sequences, on all routers together; None: no limit."""
    max_priority: int | None = None
    """Priorities may range from minus this to this; None: any."""
    running: int = 0
    """Running sequences."""
    share: Share = field(default_factory=Share)

    def require_priority(self, priority: int) -> None:
        """Raises InvalidRequest for a priority beyond the key's limit."""
        limit = self.max_priority
        if limit is not None and abs(priority) > limit:
            allowed = "no priority but 0" if limit == 0 else f"priorities from {-limit} to {limit}"
            raise InvalidRequest(f"This API key may set {allowed}, not {priority}.", param="priority")

    def require_room(self, sequences: int) -> None:
        """Check that the tenant may run one more request; each of its completions is a sequence.

        Raises Overloaded if too many are running, and InvalidRequest if the request alone exceeds the limit.
        """
        if self.max_requests is None:
            return
        if sequences > self.max_requests:
            raise InvalidRequest(
                f"The request asks for {sequences} completions; this API key may have {self.max_requests}"
                " at a time.",
                param="n",
            )
        limit = self.share.of(self.max_requests)
        if self.running and self.running + sequences > limit:
            raise Overloaded(
                f"This API key has {self.running} completions running and may have {limit};"
                f" wait until there is room for {sequences} more.",
                code="too_many_requests",
                retry_after_s=_RETRY_AFTER_S,
            )

    @contextmanager
    def request(self, sequences: int) -> Iterator[None]:
        """Context in which a request with this many sequences runs. Raises Overloaded, InvalidRequest."""
        self.require_room(sequences)
        self.running += sequences
        try:
            yield
        finally:
            self.running -= sequences


ANYBODY: Final = Tenant("anybody")

CURRENT_TENANT: Final[ContextVar[Tenant]] = ContextVar("tenant", default=ANYBODY)
"""Set by the frontend for each authenticated call."""
