"""The files in which a model folder keeps its weights. Does not import torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from engine.model_config.errors import WeightsError

_INDEX: Final = "model.safetensors.index.json"
TORCH_FILE: Final = "pytorch_model.bin"
"""Read where there are no safetensors: EAGLE-3 heads are published so."""


def weight_files(folder: Path) -> list[Path]:
    """The weight files: those that the index names, or the only one.

    Raises:
        WeightsError: there are none, or the index names files that do not exist.
    """
    index = folder / _INDEX
    if index.exists():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(names))]
    else:
        files = [folder / "model.safetensors"]
        if not files[0].exists() and (folder / TORCH_FILE).exists():
            return [folder / TORCH_FILE]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise WeightsError(
            f"{folder} lacks {', '.join(missing)}; "
            f"Baton reads model.safetensors, the files that {_INDEX} lists, or {TORCH_FILE}"
        )
    return files
