"""What a language model must know of the vision model beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GridPositions:
    """M-RoPE: the positions of an image's rows are those of its patches, in frames, rows and columns."""

    axes: tuple[int, ...]
    """For each frequency, fastest first: 0 if frames turn it, 1 for rows, 2 for columns; empty where the
    modules of transformers know."""
    merge: int
    """Patches along each side of what becomes one row of the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    """Images of one class of transformers, which encodes them with its own modules."""

    placeholder: int
    """Token whose embeddings are replaced."""
    arrays: frozenset[str]
    """Outputs of the processor that the vision model takes; the first is `pixel_values`."""
    grid: GridPositions | None = None
    """None: rows of images have the positions of their tokens."""
    bidirectional: bool = False
    """Whether the tokens of an image attend to those after them in it: a chunk has all of them or none."""
    causal_without_window: bool = False
    """Whether only layers with a window are bidirectional."""
    deepstack: int = 0
    """First layers to whose outputs further rows of an image are added."""
