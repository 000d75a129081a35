"""The scales of 8-bit KV that a checkpoint was calibrated with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from engine.model_config.errors import WeightsError
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.loader.weight_files import weight_files

_SCALE: Final = re.compile(r"\.layers\.(\d+)\.self_attn\.(?:k_proj\.|v_proj\.|attn\.)?(k|v|kv)_scale$")
"""AutoFP8's first checkpoints have one scale for keys and values."""


def kv_scales(folder: Path, layers: Sequence[int]) -> tuple[tuple[float, float], ...]:
    """What stored keys and values of each of `layers` are multiplied with; 1.0 without a scale.

    Raises:
        WeightsError: a scale is not one positive number.
    """
    scales = {layer: [1.0, 1.0] for layer in layers}
    for name, tensor in read_tensors(weight_files(folder), only=_SCALE.search):
        found = _SCALE.search(name)
        if found is None or int(found[1]) not in scales:
            continue
        scale = float(tensor) if tensor.numel() == 1 else 0.0
        if not 0.0 < scale < float("inf"):
            raise WeightsError(f"{name} has shape {list(tensor.shape)}: KV has one positive scale per layer")
        for kind in found[2]:
            scales[int(found[1])]["kv".index(kind)] = scale
    return tuple((keys, values) for keys, values in scales.values())
