"""Reads the tensors of a model folder one at a time: of one safetensors file or several, or of torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from engine.model_config.errors import WeightsError
from engine.model_config.shard import WHOLE, Shard
from engine.modeling.loader.read_ahead import Stretch, reading_ahead
from engine.modeling.loader.stored_tensors import stored_tensors
from engine.modeling.loader.weight_files import TORCH_FILE


def read_tensors(
    files: list[Path], only: Callable[[str], object] = bool, share: Shard = WHOLE
) -> Iterator[tuple[str, Tensor]]:
    """Name and value of every tensor, in CPU memory. The files are mapped: only what is used is read.

    `only`: of those whose names it is true for. `share`: of what is read ahead into the page cache, where
    several processes of this machine read the same tensors.
    """
    for file in files:
        if file.name == TORCH_FILE:
            yield from (pair for pair in _torch_tensors(file).items() if only(pair[0]))
    stored = [
        one for file in files if file.name != TORCH_FILE for one in stored_tensors(file) if only(one.name)
    ]
    with reading_ahead([Stretch(one.file, one.begin, one.end) for one in stored], share) as ahead:
        for file, tensors in groupby(stored, key=lambda one: one.file):
            with safe_open(file, framework="pt", device="cpu") as opened:
                for one in tensors:
                    yield one.name, opened.get_tensor(one.name)
                    ahead.used(one.end - one.begin)


def _torch_tensors(file: Path) -> dict[str, Tensor]:
    """Raises WeightsError if it holds anything but tensors: no code of it is run."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"{file} cannot be read ({reason}); convert it to safetensors") from error
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
