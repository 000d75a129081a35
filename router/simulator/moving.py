"""Live migration between simulated workers, as in `worker/handoffs/migrations.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engine.core.kv_manager import Reservation
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from router.simulator.worker import SimWorker

__all__ = ["Moving", "begin_move"]

_ROOM_TOKENS: Final = 256
"""That an answer may grow by until it is there."""


@dataclass(slots=True, eq=False)
class Moving:
    """An answer whose KV is on its way while it goes on."""

    source: SimWorker
    target: SimWorker
    here: Request
    there: Request
    reservation: Reservation

    @property
    def tokens(self) -> int:
        """Whose KV travels."""
        return max(0, self.here.num_tokens - self.reservation.first_token)

    @property
    def is_ready(self) -> bool:
        """It stands still, and no step computes another token of it."""
        return self.here.paused and not self.here.awaits_token

    def call_off(self) -> None:
        """The answer ended before it moved."""
        self.target.kv.free_reservation(self.reservation)

    def switch(self, now: float) -> None:
        """The target goes on with it."""
        self.there.output = list(self.here.output)
        self.target.admit_remote(self.reservation, now, self.there.num_tokens - 1)
        self.source.give_away(self.here, now)


def begin_move(source: SimWorker, target: SimWorker, here: Request) -> Moving | None:
    """None: the target has no pages for it now."""
    known = [token for token in here.output if token >= 0]
    sampling = SamplingParams(max_tokens=here.sampling.max_tokens, ignore_eos=True)
    there = Request(id=here.id, prompt=here.prompt, sampling=sampling, output=known)
    active = target.scheduler.num_active + len(target.kv.reservations)
    reservation = target.kv.reserve(there, headroom=active, room=_ROOM_TOKENS)
    if reservation is None:
        return None
    here.pinned = True
    return Moving(source, target, here, there, reservation)
