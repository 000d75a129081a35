"""Pages set aside for KV that other workers send, until the KV is here or no write can land in them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.request import Request
from engine.kv.cache.pages import PagePool, PageState
from engine.kv.manager.state_slots import StateSlots


@dataclass(slots=True, eq=False)
class Reservation:
    """Pages reserved for KV that another worker computes."""

    request: Request
    first_token: int
    """First token whose KV is transferred; earlier ones are cached here. A multiple of the page size."""
    incoming: list[int]
    """Pages that the peer writes, block by block from `first_token` on, without those behind windows."""

    @property
    def handoff_id(self) -> int:
        return self.request.id

    @property
    def pages(self) -> list[int]:
        return self.request.pages

    @property
    def slots(self) -> list[int]:
        """The slot that the peer writes the state into, if the model has one."""
        return [] if self.request.state is None else [self.request.state.slot]


class Reservations:
    """Reservations by handoff. Every page of `incoming` is IN_FLIGHT or QUARANTINED, with the handoff as its
    owner.
    """

    def __init__(self, pool: PagePool, states: StateSlots) -> None:
        self.active: dict[int, Reservation] = {}
        """Reservations that may still become running requests."""
        self._quarantined: dict[int, Reservation] = {}
        """Aborted handoffs whose pages a remote peer may still write."""
        self._pool = pool
        self._states = states

    def all(self) -> list[Reservation]:
        return [*self.active.values(), *self._quarantined.values()]

    def add(self, reservation: Reservation) -> Reservation:
        """Its pages were taken IN_FLIGHT."""
        self.active[reservation.handoff_id] = reservation
        return reservation

    def arrived(self, reservation: Reservation) -> None:
        """All KV has arrived and is verified: the pages now belong to the request."""
        handoff_id, request = reservation.handoff_id, reservation.request
        del self.active[handoff_id]
        self._pool.arrived(reservation.incoming, handoff_id, request.id)
        self._states.pool.arrived(reservation.slots, handoff_id, request.id)

    def quarantine(self, reservation: Reservation) -> None:
        handoff_id = reservation.handoff_id
        self._quarantined[handoff_id] = self.active.pop(handoff_id)
        self._pool.quarantine(reservation.incoming, handoff_id)
        self._states.pool.quarantine(reservation.slots, handoff_id)

    def free(self, reservation: Reservation, kept: int = 0) -> None:
        """`kept`: pages, from the first on, that have gone to the cache."""
        handoff_id = reservation.handoff_id
        state = PageState.IN_FLIGHT
        if self.active.pop(handoff_id, None) is None:
            del self._quarantined[handoff_id]
            state = PageState.QUARANTINED
        if reservation.incoming:
            self._pool.give_back(reservation.incoming[kept:], handoff_id, state)
            self._states.release(reservation.request, handoff_id, state)
