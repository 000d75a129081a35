"""Rows of images for the steps of a runner: encoded when first needed, and kept by digest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from engine.core.batch.media_layout import MediaLayout
from engine.core.batch.media_parts import MediaPart, media_parts
from engine.core.batch.media_positions import Shifts, positions_of_step
from engine.core.media import Encoding, MediaItem, MediaUse
from engine.core.plan import StepPlan
from engine.core.request import RequestId
from engine.errors import EngineError, MediaMissing, UnservableRequest
from engine.media.encode_time import EncodeTimer
from engine.media.step_media import StepMedia
from engine.model_config.parts.vision_spec import VisionSpec

_WORKSPACE: Final = 1 << 30
"""Bytes set aside on a GPU for the activations of one image."""


_NO_ROWS: Final = np.empty(0, np.int64)


class VisionModel(Protocol):
    def rows(self, item: MediaItem) -> Tensor:
        """Rows of the item, [n, (1 + deepstack) * d]: those of the embedding first."""


@dataclass(slots=True)
class _Use:
    """A `MediaUse` being made."""

    queries: int = 0
    hits: int = 0
    encoded: list[tuple[RequestId, Callable[[], Encoding]]] = field(default_factory=list)

    def known(self) -> MediaUse:
        return MediaUse(self.queries, self.hits, [(id, seconds()) for id, seconds in self.encoded])


class MediaEncoder:
    def __init__(
        self,
        tower: VisionModel,
        spec: VisionSpec,
        cache_bytes: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`cache_bytes`: of rows kept for later steps; the least recently used go first. `dtype`: of rows."""
        self.dtype = dtype
        self._tower = tower
        self._spec = spec
        self._device = device
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._shifts = None if spec.grid is None else Shifts(spec.grid.merge)
        self._cache: OrderedDict[bytes, Tensor] = OrderedDict()

    @property
    def reserved_bytes(self) -> int:
        """Memory that it may take beside the weights of the vision model."""
        return self._cache_bytes + _WORKSPACE

    def has(self, digest: bytes) -> bool:
        """Whether the rows of an item are kept."""
        return digest in self._cache

    def keep(self, digest: bytes, rows: Tensor) -> None:
        """Keep the rows of an item that another worker has encoded."""
        if digest not in self._cache:
            rows = self._cache[digest] = rows.to(self._device)
            self._cached_bytes += rows.nbytes
            self._evict()

    def encode(self, item: MediaItem) -> tuple[Tensor, MediaUse]:
        """Rows of an item for another worker, encoded unless they are kept; waits for the device.

        Raises MediaMissing, or UnservableRequest.
        """
        use = _Use()
        rows = self._rows(MediaPart(0, item, 0, 0, is_first=True, rows=_NO_ROWS), use).cpu()
        self._evict()
        return rows, use.known()

    def of(self, plan: StepPlan) -> StepMedia:
        """Encode what is missing of a step's rows. O(chunks), and the time of the vision model."""
        errors: dict[RequestId, EngineError] = {}
        found: list[tuple[MediaPart, Tensor]] = []
        use = _Use()
        for part in media_parts(plan, self._spec.placeholder):
            try:
                rows = self._rows(part, use)
            except (MediaMissing, UnservableRequest) as error:
                errors[part.request] = error
                continue
            if len(rows) == part.expected:
                found.append((part, rows[part.first : part.first + len(part.rows)]))
            else:
                what = f"{len(rows)} rows of an image do not fit its {part.expected} placeholders"
                errors[part.request] = UnservableRequest(what)
        self._evict()
        values = torch.cat([values for _, values in found]) if found else None
        step = StepMedia.of(self._layout([part for part, _ in found], plan), values, self._spec, self._device)
        return replace(step, errors=errors, use=use.known)

    def _layout(self, parts: Sequence[MediaPart], plan: StepPlan) -> MediaLayout:
        if not parts:
            shifts = None if self._shifts is None else self._shifts.of(plan)
            return MediaLayout() if shifts is None else MediaLayout(shifts=shifts)
        rows, grid = [part.rows for part in parts], self._spec.grid
        if grid is None:
            return MediaLayout(rows)
        return MediaLayout(rows, positions_of_step(plan, grid.merge).reshape(-1))

    def _rows(self, part: MediaPart, use: _Use) -> Tensor:
        """All rows of an item. Raises MediaMissing, or UnservableRequest."""
        item = part.item
        use.queries += part.is_first
        if (rows := self._cache.get(item.digest)) is not None:
            use.hits += part.is_first
            self._cache.move_to_end(item.digest)
            return rows
        if not item.arrays:
            raise MediaMissing(
                f"the image at position {item.offset} is to be computed, but its pixels are not here"
            )
        timer = EncodeTimer(self._device)
        rows = self._cache[item.digest] = self._tower.rows(item)
        seconds = timer.ended()
        use.encoded.append((part.request, lambda: Encoding(item, timer.begin, seconds())))
        self._cached_bytes += rows.nbytes
        return rows

    def _evict(self) -> None:
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            _, rows = self._cache.popitem(last=False)
            self._cached_bytes -= rows.nbytes
