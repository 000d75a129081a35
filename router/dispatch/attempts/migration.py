"""State of one move of a running answer to another worker.

The source keeps decoding until the target has the KV. A failure before that cancels the move, and the source
continues. A failure of the target after that fails the attempt.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from router.dispatch.attempts.assignment import Assignment

DRAIN: Final = "drain"
"""Reason of a move: the worker is being drained."""


@dataclass(slots=True, eq=False)
class Migration:
    source: Assignment
    target: Assignment
    position: int | None = None
    """Position of the first token that the target computes; None until the KV has arrived."""
    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Result: whether the KV has arrived at the target."""

    @property
    def has_arrived(self) -> bool:
        return self.position is not None

    def covers(self, position: int) -> bool:
        """Whether the target computes the token at this position, and all that follow."""
        return self.position is not None and self.position <= position

    def is_over(self, position: int) -> bool:
        """Whether another move may start, given that all tokens before `position` were received."""
        return self.done.done() and (not self.has_arrived or self.covers(position))

    @property
    def is_lost(self) -> bool:
        """The move was cancelled after the source had released the request: no worker has it."""
        return self.done.done() and not self.has_arrived and not self.source.active

    def arrived(self, position: int) -> None:
        self.position = position
        if not self.done.done():
            self.done.set_result(True)

    def cancel(self) -> None:
        """Keep the answer at its source. No-op if the move is over."""
        if self.done.done():
            return
        self.done.set_result(False)
        self.source.session.abort(self.target.request_id)  # the move has the target's request id
        self.target.abort()
