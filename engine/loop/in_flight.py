"""The step on the device whose results are not taken yet, and what it may still write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.core.plan import StepPlan
from engine.core.request import Request
from engine.executor.base import StepInFlight
from engine.kv.cache.page_needs import PageNeeds


@dataclass(slots=True)
class Launched:
    plan: StepPlan
    step: StepInFlight
    at: float
    freed: set[int] = field(default_factory=set)
    """Pages given back since the launch that this step may still write, those of states included."""


class InFlight:
    def __init__(self, needs: PageNeeds, pages_of_slot: Callable[[int], Sequence[int]]) -> None:
        self.launched: Launched | None = None
        """With overlap: the step after which the next one is planned."""
        self._needs = needs
        self._pages_of_slot = pages_of_slot

    def computed(self, request: Request) -> int:
        """Tokens whose KV is in the pool, without those that the step computes. O(chunks)."""
        chunks = [] if self.launched is None else self.launched.plan.chunks
        return next((c.start for c in chunks if c.request is request), request.num_computed)

    def may_write(self, pages: Sequence[int]) -> bool:
        """Whether the step may write these pages, which were free until now."""
        return self.launched is not None and not self.launched.freed.isdisjoint(pages)

    def wait_for_writes(self, pages: Sequence[int]) -> None:
        """Return when no step writes these pages, which a peer is to write.

        The device's queue does not order a peer's write after the step, so wait for the step if it may still
        write one of them. Waiting leaves the device idle afterwards.
        """
        if self.may_write(pages):
            assert self.launched is not None
            self.launched.step.result()

    def note_late_writes(self, request: Request) -> None:
        """Record which pages of an ending request the step may still write. O(chunks)."""
        launched = self.launched
        if launched is None:
            return
        stride, size = self._needs.stride, self._needs.page_size
        for chunk in launched.plan.chunks:
            if chunk.request is request:
                first, end = chunk.start // size, self._needs.blocks(chunk.end)
                launched.freed.update(request.pages[first * stride : end * stride])
                if request.state is not None:
                    for slot in request.state.written:
                        launched.freed.update(self._pages_of_slot(slot))
