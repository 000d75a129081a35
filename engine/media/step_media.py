"""What images add to one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from engine.core.batch.batch import Batch
from engine.core.batch.media_layout import MediaLayout
from engine.core.batch.media_rows import MediaRows
from engine.core.batch.step_inputs import Ints, StepInputs
from engine.core.media import NO_MEDIA_USE, MediaUse
from engine.core.request import RequestId
from engine.device.staging import send
from engine.errors import EngineError
from engine.model_config.parts.vision_spec import VisionSpec

_NOTHING: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class StepMedia:
    rows: MediaRows | None = None
    """None: the step has no rows of images."""
    errors: Mapping[RequestId, EngineError] = field(default_factory=dict)
    """Requests whose rows cannot be had."""

    use: Callable[[], MediaUse] = lambda: NO_MEDIA_USE
    """Once the step has run: what it looked up and encoded."""
    shifts: Tensor | None = None
    """[T] int64: what is added to the positions of a step without rows of images."""
    values: Tensor | None = None
    """[M, (1 + deepstack) * d]: all values of `rows`, one after another."""
    packed: Ints = field(default_factory=lambda: _NOTHING)
    """`MediaLayout.packed`."""

    @classmethod
    def of(
        cls, layout: MediaLayout, values: Tensor | None, spec: VisionSpec, device: torch.device
    ) -> StepMedia:
        """`values`: None for a step without rows of images."""
        packed = layout.packed()
        if values is None:
            (shifts,) = send([layout.shifts], device) if len(layout.shifts) else (None,)
            return cls(shifts=shifts, packed=packed)
        has_positions = spec.grid is not None
        rows, *positions = send(
            [layout.rows, *([layout.positions.reshape(3, -1)] if has_positions else [])], device
        )
        first, *deeper = values.chunk(1 + spec.deepstack, dim=-1)
        placed = MediaRows(
            rows,
            first,
            positions=positions[0] if has_positions else None,
            deeper=tuple(deeper),
            spans=layout.spans if spec.bidirectional else (),
            spans_need_window=spec.causal_without_window,
        )
        return cls(placed, values=values, packed=packed)

    def sent_with(self, inputs: StepInputs) -> StepInputs:
        """The inputs of the step for other ranks."""
        return replace(inputs, media=self.packed) if len(self.packed) else inputs

    def joined(self, batch: Batch) -> Batch:
        """The batch of the step, with its images. Changes its positions, where graphs read them."""
        if self.shifts is not None:
            batch.positions.add_(self.shifts)
        return batch if self.rows is None else replace(batch, media=self.rows)


NO_MEDIA: Final = StepMedia()
