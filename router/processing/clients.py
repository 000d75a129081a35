"""Who is asking: each call belongs to a client, from the frontend it came through to its last token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from router.errors import InvalidRequest, Overloaded

__all__ = ["ANYBODY", "CURRENT_CLIENT", "Client"]

_RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Client:
    """Whoever holds one API key; or everybody together, where no keys are asked for."""

    name: str
    """For the log; says nothing about the key."""
    max_requests: int | None = None
    """Sequences at a time; None: as many as the cluster takes."""
    max_priority: int | None = None
    """Requests may have priorities from minus this to this; None: any."""
    running: int = 0
    """Sequences."""

    def require_priority(self, priority: int) -> None:
        """Raises InvalidRequest for a priority beyond the key's limit."""
        limit = self.max_priority
        if limit is not None and abs(priority) > limit:
            allowed = "no priority but 0" if limit == 0 else f"priorities from {-limit} to {limit}"
            raise InvalidRequest(f"This API key may set {allowed}, not {priority}.", param="priority")

    def require_room(self, sequences: int) -> None:
        """Room for one more request: each of its completions is a sequence that the workers run.

        Raises Overloaded while they would be too many, and InvalidRequest if they always are.
        """
        if self.max_requests is None:
            return
        if sequences > self.max_requests:
            raise InvalidRequest(
                f"The request asks for {sequences} completions; this API key may have {self.max_requests}"
                " at a time.",
                param="n",
            )
        if self.running + sequences > self.max_requests:
            raise Overloaded(
                f"This API key has {self.running} completions running and may have {self.max_requests};"
                f" wait until there is room for {sequences} more.",
                code="too_many_requests",
                retry_after_s=_RETRY_AFTER_S,
            )

    @contextmanager
    def request(self, sequences: int) -> Iterator[None]:
        """While a request of so many sequences runs. Raises Overloaded, InvalidRequest."""
        self.require_room(sequences)
        self.running += sequences
        try:
            yield
        finally:
            self.running -= sequences


ANYBODY: Final = Client("anybody")

CURRENT_CLIENT: Final[ContextVar[Client]] = ContextVar("client", default=ANYBODY)
"""Set by the frontend for the call that it lets in."""
