"""Where the recurrent state of a request is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

NO_SLOT: Final = -1


class CheckpointSave(NamedTuple):
    """A checkpoint that a chunk writes, on its way to the prefix cache."""

    position: int
    """Tokens that the saved state covers; a multiple of the page size."""
    slot: int


@dataclass(slots=True, eq=False)
class RequestState:
    slot: int
    """The request's own, which holds its state after `Request.num_computed` tokens."""
    source: int = NO_SLOT
    """A checkpoint that the chunk at token `resumed` reads in place of `slot`."""
    resumed: int = 0
    branch: int = 0
    """Where other requests with this prefix went on differently; 0: unknown. The cache has the pages up to
    there, but no checkpoint: a chunk ends there and saves one."""
    saves: list[CheckpointSave] = field(default_factory=list)

    @property
    def written(self) -> list[int]:
        """Slots that steps of this request write."""
        return [self.slot, *(save.slot for save in self.saves)]

    def read_by(self, start: int) -> int:
        """The slot that a chunk at token `start` reads; NO_SLOT: it begins with the empty state."""
        if start == 0:
            return NO_SLOT
        return self.source if self.source != NO_SLOT and start == self.resumed else self.slot

    def saved_by(self, start: int, end: int) -> CheckpointSave | None:
        """The checkpoint that the chunk of tokens [start, end) writes."""
        return next((save for save in self.saves if start < save.position <= end), None)
