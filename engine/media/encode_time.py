"""Measures how long the vision model takes for an item, without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from engine.core.media import Encoding, MediaItem


class EncodeTimer:
    """Between its making and `ended`, one item is encoded on the current stream."""

    def __init__(self, item: MediaItem, device: torch.device) -> None:
        self._item = item
        self._begin = time.monotonic()
        self._event = _mark() if device.type == "cuda" else None

    def ended(self) -> Callable[[], Encoding]:
        """Returns the time as a function: on a GPU, it is known once the step has run."""
        item, begin, first = self._item, self._begin, self._event
        if first is None:
            encoding = Encoding(item, begin, time.monotonic() - begin)
            return lambda: encoding
        last = _mark()
        return lambda: Encoding(item, begin, first.elapsed_time(last) / 1e3)


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
