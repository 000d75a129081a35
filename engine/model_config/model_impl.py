"""Whose modules a model runs."""

from __future__ import annotations

from enum import Enum


class ModelImpl(Enum):
    AUTO = "auto"
    """Baton's where it has the family, otherwise transformers'."""
    BATON = "baton"
    TRANSFORMERS = "transformers"
