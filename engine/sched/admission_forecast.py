"""How many pages a request must leave to others to be admitted."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.kv_manager import KVManager
from engine.core.request import Request
from engine.sched.page_forecast import OutputLengths, peak_growth

__all__ = ["AdmissionForecast"]


class AdmissionForecast:
    """The admissions of one plan: what all that run will take until they end, and give back then.

    Costs O(running) at the first question, and again whenever a prefix gets its second reader.
    """

    def __init__(self, kv: KVManager, lengths: OutputLengths, running: Sequence[Request]) -> None:
        """Besides `running`, whose KV is still on its way from another worker counts: it runs soon."""
        self._kv = kv
        self._lengths = lengths
        self._running = [*running, *(reservation.request for reservation in kv.reservations.values())]
        self._alone: list[int] = []
        self._growth: list[int] = []

    def headroom(self, request: Request, alone: int) -> int:
        """Pages to leave available so that nobody is preempted later, if `request` holds `alone` by itself.

        0 if nobody runs: alone it may take what there is.
        """
        if not self._running:
            return 0
        if not self._growth:
            self._growth = [self._growth_of(r) for r in self._running]
            self._count_alone()
        elif self._kv.is_second_reader(request):
            self._count_alone()
        return peak_growth([*self._alone, alone], [*self._growth, self._growth_of(request)])

    def admitted(self, request: Request) -> None:
        """`request` runs now."""
        self._running.append(request)
        if self._growth:
            self._alone.append(self._kv.pages_alone(request))
            self._growth.append(self._growth_of(request))

    def _count_alone(self) -> None:
        self._alone = [self._kv.pages_alone(r) for r in self._running]

    def _growth_of(self, request: Request) -> int:
        """Pages that it will probably still take."""
        return -(-self._lengths.remaining(request) // self._kv.page_size)
