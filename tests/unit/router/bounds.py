"""Bounds of a small model for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from router.api.generation.params.bounds import ServedBounds
from router.api.generation.served_model import ServedModel
from router.request_limits import RequestLimits

VOCAB: Final = 100
BOUNDS: Final = ServedBounds.of(
    ServedModel(name="small", path=Path(), mode="mixed", max_model_len=256, vocab_size=VOCAB), RequestLimits()
)
