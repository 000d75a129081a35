"""Rows of a step that are not computed in the chunked form."""

from __future__ import annotations

from typing import NamedTuple

import torch


class SingleRows(NamedTuple):
    """R rows, each of which is a decode, or one of several of a verify chunk: int32 tensors [R]."""

    sources: torch.Tensor
    """Slots of the states before the first row of a request; negative: none."""
    slots: torch.Tensor
    """Where the state after its last row goes; negative: nowhere."""
    counts: torch.Tensor
    """Rows of a request at its first row, 0 at the others."""
    places: torch.Tensor
    """Place of each row among the rows of its request."""
