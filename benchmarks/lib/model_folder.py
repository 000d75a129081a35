"""The folder of the model that a benchmark measures."""

from __future__ import annotations

import sys
from pathlib import Path

from engine.modeling.loader.checkpoint import CheckpointError, resolve


def model_folder(name: str, *, keep_codes: bool = False) -> Path:
    """As `router --model` takes it. Ends the process with one line if there is no such model.

    `keep_codes`: weights of a GGUF file stay integers with scales.
    """
    try:
        return resolve(name, keep_codes=keep_codes).path
    except CheckpointError as error:
        sys.exit(f"--model {name}: {error}")
