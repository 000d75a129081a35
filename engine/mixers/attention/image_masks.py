"""Masks of images whose tokens see those after them. Only attention in plain torch computes with them."""

from __future__ import annotations

import numpy as np
import torch

from engine.core.batch.batch import Batch
from engine.core.batch.step_inputs import Ints


def seen_by(rows: slice, batch: Batch, context_len: int, window: int | None) -> Ints | None:
    """Tokens of the context that each of `rows`, which are its last ones, sees in layers with this window;
    None: those up to itself, as far as the window reaches."""
    media = batch.media
    spans = () if media is None or (window is None and media.spans_need_window) else media.spans
    within = [(first, end) for first, end in spans if rows.start <= first < rows.stop]
    if not within:
        return None
    before = context_len - rows.stop
    seen: Ints = np.arange(rows.start, rows.stop) + before + 1
    for first, end in within:
        seen[first - rows.start : end - rows.start] = end + before
    return seen


def mask_until(
    seen: Ints, columns: range, end: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The mask [rows, columns] of rows that see tokens before `seen`, the last row being before `end`."""
    place, token = np.arange(end - len(seen), end)[:, None], np.asarray(columns)
    hidden = token >= seen[:, None]
    if window is not None:
        hidden |= token <= place - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(torch.from_numpy(hidden).to(device), -torch.inf)
