"""One move of a running answer to another worker, as an attempt goes through it.

The answer goes on at its source until the target has it. If anything is in doubt before that, the move is off
and the answer stays; if it is lost after that, the attempt fails as if the target had always had it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from router.dispatch.attempts.part import Part

__all__ = ["Move"]


@dataclass(slots=True, eq=False)
class Move:
    source: Part
    target: Part
    reason: str
    position: int | None = None
    """Of the first token that the target computes, once it has the answer."""
    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Whether the target has the answer."""

    @property
    def has_arrived(self) -> bool:
        return self.position is not None

    def covers(self, position: int) -> bool:
        """Whether the target computes the token at this position, and all that follow."""
        return self.position is not None and self.position <= position

    def is_over(self, position: int) -> bool:
        """Whether another move may begin, if all tokens before `position` came."""
        return self.done.done() and (not self.has_arrived or self.covers(position))

    @property
    def is_lost(self) -> bool:
        """The move was called off when the source had given the answer away: nobody has it."""
        return self.done.done() and not self.has_arrived and not self.source.active

    def arrived(self, position: int) -> None:
        self.position = position
        if not self.done.done():
            self.done.set_result(True)

    def call_off(self) -> None:
        """The answer stays where it is. Costs nothing when the move is over."""
        if self.done.done():
            return
        self.done.set_result(False)
        self.source.session.abort(self.target.request_id)  # the source knows the move by the target's id
        self.target.leave()
