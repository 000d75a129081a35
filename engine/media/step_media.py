"""What images add to one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from torch import Tensor

from engine.core.batch.batch import Batch
from engine.core.batch.media_rows import MediaRows
from engine.core.media import NO_MEDIA_USE, MediaUse
from engine.core.request import RequestId
from engine.errors import EngineError


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

    def joined(self, batch: Batch) -> Batch:
        """The batch of the step, with its images. Changes its positions, where graphs read them."""
        if self.shifts is not None:
            batch.positions.add_(self.shifts)
        return batch if self.rows is None else replace(batch, media=self.rows)


NO_MEDIA: Final = StepMedia()
