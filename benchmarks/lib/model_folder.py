"""The folder of the model that a benchmark measures."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import copyfile
from typing import Final

from engine.modeling.loader.checkpoint import CheckpointError, resolve

_CONFIGURATION: Final = ("config.json", "generation_config.json")
_TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def model_folder(name: str) -> Path:
    """As `router --model` takes it. Ends the process with one line if there is no such model."""
    try:
        return resolve(name).path
    except CheckpointError as error:
        sys.exit(f"--model {name}: {error}")


def with_tokenizer(model: str, tokenizer: str | None, scratch: Path) -> str:
    """The model to load: `model`, or a copy of its configuration in `scratch` with the tokenizer of another
    one, for random weights."""
    if tokenizer is None:
        return model
    for folder, names in ((model_folder(model), _CONFIGURATION), (model_folder(tokenizer), _TOKENIZER)):
        for name in names:
            if (folder / name).exists():
                copyfile(folder / name, scratch / name)
    return str(scratch)
