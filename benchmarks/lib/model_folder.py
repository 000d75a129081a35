"""The folder of the model that a benchmark measures."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.modeling.loader.checkpoint import CheckpointError, resolve


def model_folder(name: str) -> Path:
    """As `router --model` takes it. Ends the process with one line if there is no such model."""
    try:
        return resolve(name).path
    except CheckpointError as error:
        sys.exit(f"--model {name}: {error}")
