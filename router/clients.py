"""Who is asking: each call belongs to a client, from the door it came through to its last token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from router.errors import Overloaded

__all__ = ["ANYBODY", "CURRENT_CLIENT", "Client"]

_RETRY_AFTER_S: Final = 1.0


@dataclass(slots=True, eq=False)
class Client:
    """Whoever holds one API key; or everybody together, where no keys are asked for."""

    name: str
    """For the log; says nothing about the key."""
    max_requests: int | None = None
    """At a time; None: as many as the cluster takes."""
    running: int = 0

    def require_room(self) -> None:
        """Raises Overloaded while all of its requests are taken."""
        if self.max_requests is not None and self.running >= self.max_requests:
            raise Overloaded(
                f"This API key has {self.running} requests running, as many as it may; wait for one to end.",
                code="too_many_requests",
                retry_after_s=_RETRY_AFTER_S,
            )

    @contextmanager
    def request(self) -> Iterator[None]:
        """While one of its requests runs. Raises Overloaded."""
        self.require_room()
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1


ANYBODY: Final = Client("anybody")

CURRENT_CLIENT: Final[ContextVar[Client]] = ContextVar("client", default=ANYBODY)
"""Set by the door for the call that it lets in."""
