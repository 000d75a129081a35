"""The features of a target's tokens, from which its head drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.core.batch.batch import Batch
from engine.core.plan import StepPlan
from engine.core.request import Request, RequestId
from engine.modeling.models.draft_head import DraftHead


@dataclass(slots=True)
class _Computed:
    """Tokens [start, end) of a request, computed here one after another since it was last admitted."""

    admission: int
    start: int
    end: int


class TargetFeatures:
    """Stores the features of each token that the target computes, at the slot of its KV. A `HiddenStates`.

    Tokens whose KV came from elsewhere (a handoff, a pull, a tier) have none.
    """

    def __init__(self, head: DraftHead, num_slots: int, *, group: int = 0) -> None:
        """`num_slots`: tokens in all pages. `group`: of the target's layers, whose pages they use."""
        self._head = head
        self._group = group
        self.features = head.features.new_zeros(num_slots, head.spec.hidden_size)
        """[slots, d]"""
        self._computed: dict[RequestId, _Computed] = {}

    def planned(self, plan: StepPlan) -> None:
        """O(chunks)."""
        for chunk in plan.chunks:
            known = self._computed.get(chunk.request.id)
            if known is None or known.admission != chunk.admission or chunk.start > known.end:
                self._computed[chunk.request.id] = _Computed(chunk.admission, chunk.start, chunk.end)
            else:
                known.end = chunk.end

    def before(self, batch: Batch) -> None:
        pass

    def after(self, batch: Batch, hidden: torch.Tensor) -> None:
        slots = batch.groups[self._group].slot_mapping
        self.features.index_copy_(0, slots, self._head.features_of(hidden))

    def computed_since(self, request: Request) -> int | None:
        """The first token from which on all but the last known one have features; None: there is none."""
        known = self._computed.get(request.id)
        if known is None or known.admission != request.admissions or known.end < request.num_known - 1:
            return None
        return known.start

    def ended(self, request: RequestId) -> None:
        self._computed.pop(request, None)


class HeadRows:
    """Gives a head's rows the target's features, or after a guess the head's own. A `HiddenStates`."""

    def __init__(self, head: DraftHead, features: torch.Tensor, *, num_requests: int) -> None:
        """`features`: see `TargetFeatures`."""
        self._features = features
        self._inputs = head.features
        self._last = features.new_zeros(num_requests, features.shape[1])
        """Features of the row that sampled last, by request slot, as the runner keeps sampled tokens."""

    def planned(self, plan: StepPlan) -> None:
        pass

    def before(self, batch: Batch) -> None:
        rows = self._inputs[: batch.num_rows]
        torch.index_select(self._features, 0, batch.groups[0].slot_mapping, out=rows)
        rows[batch.pending_rows] = self._last[batch.pending_slots]

    def after(self, batch: Batch, hidden: torch.Tensor) -> None:
        self._last[batch.sample_slots] = hidden[batch.sample_rows, self._last.shape[1] :]
