"""Errors of checkpoints that cannot be served."""

from __future__ import annotations


class UnsupportedModel(ValueError):
    """The checkpoint needs a feature that Baton does not support; the message names it."""


class WeightsError(ValueError):
    """The weights do not fit the model: missing, unexpected or of another shape; the message lists them."""


class CheckpointError(Exception):
    """The model cannot be found or fetched; the message says what to do."""
