"""Which adapters a step can compute with. Plain Python: no tensors."""

from __future__ import annotations

from typing import Final

from engine.core.adapters import Filling
from engine.core.request import Request

_NONE: Final = -1


class AdapterSlots:
    """A slot is free while no running request uses its adapter; of the free ones, the one that was used last
    longest ago gets another adapter first.

    A waiting request whose adapter finds no free slot is promised the one with the fewest requests: from then
    on, requests after it in the queue do not prolong that slot's use. All others run on.
    """

    def __init__(self, count: int) -> None:
        self._digests: list[bytes] = [b""] * count
        self._users = [0] * count
        self._used = [0] * count
        """When its last user started."""
        self._starts = 0
        self._promised: dict[bytes, int] = {}
        """Slots by adapters that wait for them, of this plan; and of the one before."""
        self._kept: dict[bytes, int] = {}
        self._fillings: list[Filling] = []
        self.coming: set[bytes] = set()
        """Adapters that are being loaded: requests wait for them, and are promised no slot."""

    def begin(self) -> None:
        """A step is planned: requests are asked for in the order of their turns."""
        self._kept, self._promised = self._promised, {}

    def admits(self, request: Request) -> bool:
        """Whether the request can start now. If not, it takes its turn among those that wait for a slot."""
        digest = request.adapter_digest
        if not digest:
            return True
        if digest in self.coming:
            return False
        slot = self._slot_of(digest)
        if slot != _NONE:
            return slot not in self._promised.values()
        if self._free_for(digest) != _NONE:
            return True
        if digest not in self._promised:
            open_slots = set(range(len(self._digests))) - {*self._promised.values()}
            kept = self._kept.get(digest, _NONE)
            if kept in open_slots:
                self._promised[digest] = kept
            elif open_slots:
                self._promised[digest] = min(open_slots, key=lambda s: (self._users[s], self._used[s]))
        return False

    def start(self, request: Request) -> None:
        """A request that was admitted starts."""
        digest = request.adapter_digest
        if not digest:
            return
        slot = self._slot_of(digest)
        if slot == _NONE:
            slot = self._free_for(digest)
            self._digests[slot] = digest
            self._fillings.append(Filling(slot, digest))
        self._promised.pop(digest, None)
        self._starts += 1
        self._used[slot] = self._starts
        self._users[slot] += 1
        request.adapter_slot = slot

    def stop(self, request: Request) -> None:
        if request.adapter_slot != _NONE:
            self._users[request.adapter_slot] -= 1
            request.adapter_slot = _NONE

    def forget(self, digest: bytes) -> None:
        """An adapter without users is unloaded."""
        slot = self._slot_of(digest)
        if slot != _NONE:
            assert not self._users[slot], "a running request uses the adapter"
            self._digests[slot] = b""
        self._fillings = [filling for filling in self._fillings if filling.digest != digest]

    def holds(self, digest: bytes) -> bool:
        """Whether the adapter has a slot."""
        return self._slot_of(digest) != _NONE

    def take_fillings(self) -> list[Filling]:
        """Slots that have got another adapter since the last call, in order."""
        fillings, self._fillings = self._fillings, []
        return fillings

    def _slot_of(self, digest: bytes) -> int:
        return self._digests.index(digest) if digest in self._digests else _NONE

    def _free_for(self, digest: bytes) -> int:
        promised = {slot for other, slot in self._promised.items() if other != digest}
        free = [s for s, users in enumerate(self._users) if not users and s not in promised]
        return min(free, key=lambda s: self._used[s] if self._digests[s] else _NONE, default=_NONE)
