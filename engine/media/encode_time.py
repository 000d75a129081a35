"""Measures how long the vision model takes for an image, without waiting for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import torch


class EncodeTimer:
    """Between its making and `ended`, one image is encoded on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.begin: Final = time.monotonic()
        self._event = _mark() if device.type == "cuda" else None

    def ended(self) -> Callable[[], float]:
        """Returns the seconds as a function: on a GPU, they are known once the step has run."""
        first = self._event
        if first is None:
            seconds = time.monotonic() - self.begin
            return lambda: seconds
        last = _mark()
        return lambda: first.elapsed_time(last) / 1e3


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
