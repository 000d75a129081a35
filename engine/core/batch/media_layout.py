"""Where a step has rows of images, as flat arrays, which are also what rank 0 sends to other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.core.batch.media_parts import runs
from engine.core.batch.step_inputs import Ints

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class MediaLayout:
    parts: Sequence[Ints] = ()
    """Rows of the step that each part of an image takes; none: the step has no rows of images."""
    positions: Ints = field(default_factory=lambda: _NONE)
    """[3 * T]: M-RoPE positions of all rows of the step; empty: each has one position, its place."""
    shifts: Ints = field(default_factory=lambda: _NONE)
    """[T]: what is added to the positions of a step without rows of images; empty: nothing."""

    @property
    def rows(self) -> Ints:
        return np.concatenate(self.parts) if self.parts else _NONE

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First row and end of what each image has in one piece."""
        return tuple(span for part in self.parts for span in runs(part))

    def packed(self) -> Ints:
        """Empty if nothing differs from a step of text."""
        if not self.parts and not len(self.shifts):
            return _NONE
        lengths = [len(self.parts), len(self.positions), len(self.shifts), *map(len, self.parts)]
        return np.concatenate([np.array(lengths, np.int64), *self.parts, self.positions, self.shifts])

    @classmethod
    def unpack(cls, packed: Ints) -> MediaLayout:
        if not len(packed):
            return cls()
        count, positions, shifts = packed[:3].tolist()
        lengths = packed[3 : 3 + count].tolist()
        ends = np.cumsum([*lengths, positions, shifts])[:-1]
        *parts, of_rows, of_text = np.split(packed[3 + count :], ends)
        return cls(parts, of_rows, of_text)
