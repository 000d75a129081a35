"""Copies the tensors of a model folder to where they belong in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import torch
from torch import Tensor

from common.progress import Progress, silent
from engine.device.cpu_threads import in_parallel
from engine.model_config.errors import WeightsError
from engine.model_config.quantization import WeightFormat
from engine.modeling.loader.bitsandbytes import dequantized
from engine.modeling.loader.gguf.blocks import unpacked
from engine.modeling.loader.places import Place, places_of
from engine.modeling.loader.safetensors_reader import read_tensors
from engine.modeling.loader.upload import Upload
from engine.modeling.models.base import CausalLM

_STAGE: Final = "Loading weights"
_NAMES_SHOWN: Final = 5
_UPLOADING: Final = 8
"""Threads that copy to a GPU."""

_Placed: TypeAlias = tuple[str, str, Tensor, Sequence[Place]]
"""A tensor's name in the checkpoint, in the model's table, its value, and where it goes."""


class FillTargets(Protocol):
    """Where the tensors of a checkpoint go. Names are those of `CausalLM.weight_table`."""

    def take(self, name: str) -> Sequence[Place]:
        """The places that a tensor fills, once; empty for one that the model does not have."""

    def filled(self, name: str) -> None:
        """Call when a tensor was copied to its places."""

    @property
    def missing(self) -> list[str]:
        """Tensors that have not been taken."""


class Parameters:
    """Targets in a model that is not packed yet."""

    def __init__(self, model: CausalLM) -> None:
        self._places = places_of(model)

    def take(self, name: str) -> Sequence[Place]:
        return self._places.pop(name, [])

    def filled(self, name: str) -> None:
        pass

    @property
    def missing(self) -> list[str]:
        return list(self._places)


@torch.no_grad()
def fill(model: CausalLM, files: list[Path], targets: FillTargets, progress: Progress = silent) -> None:
    """Copy all tensors of `files` to `targets`. Raises WeightsError if they are not those of the model."""
    unexpected: list[str] = []
    done, total = 0, sum(file.stat().st_size for file in files)
    progress(_STAGE, 0, total)
    placed = _placed(model, files, targets, unexpected)
    for name, size in _copied(placed, on_host=next(model.parameters()).device.type == "cpu"):
        targets.filled(name)
        done += size
        progress(_STAGE, done, total)
    progress(_STAGE, total, total)
    if not done and model.spec.is_mtp_head:
        raise WeightsError(
            f"{files[0].parent} has no head for multi-token prediction: use --speculative auto, or a"
            " checkpoint that has one"
        )
    _require_all(files, targets, unexpected)


def check(model: CausalLM, files: list[Path], targets: FillTargets) -> None:
    """Raise WeightsError where `fill` would, by names, shapes and dtypes. Reads little of the files."""
    unexpected: list[str] = []
    for name, _, tensor, places in _placed(model, files, targets, unexpected, values=False):
        for place in places:
            place.check(tensor, name)
    _require_all(files, targets, unexpected)


def _placed(
    model: CausalLM, files: list[Path], targets: FillTargets, unexpected: list[str], *, values: bool = True
) -> Iterator[_Placed]:
    tensors = read_tensors(files, lambda name: model.reads(model.source_name(name)), model.shard)
    if model.spec.quantization is not None and model.spec.quantization.format is WeightFormat.BITSANDBYTES:
        tensors = dequantized(tensors, values=values)
    dtype = model.embed.weight.dtype
    for name, stored in (
        part
        for packed in tensors
        for part in unpacked(*packed, model.spec.quantization, dtype, values=values)
    ):
        for source, tensor in model.unstacked(model.source_name(name), stored):
            places = targets.take(source)
            if not places and model.ignores(source):
                model.check_ignored(source, tensor)
            elif not places and not model.is_empty(source, tensor):
                unexpected.append(name)
            yield name, source, tensor, places


def _copied(placed: Iterable[_Placed], *, on_host: bool) -> Iterator[tuple[str, int]]:
    """Name and size of each tensor, once it is copied."""
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_ if on_host else Upload()

    def fill(one: _Placed) -> tuple[str, int]:
        name, source, tensor, places = one
        with torch.inference_mode():  # this is another thread
            for place in places:
                place.fill(tensor, name, copy)
        return source, tensor.nbytes

    return in_parallel(fill, placed, threads=None if on_host else _UPLOADING)


def _require_all(files: Sequence[Path], targets: FillTargets, unexpected: list[str]) -> None:
    problems = [*_listing("missing", targets.missing), *_listing("unexpected", unexpected)]
    if problems:
        raise WeightsError(
            f"the weights in {files[0].parent} are not those of its config.json: {'; '.join(problems)}"
        )


def _listing(what: str, names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return [f"{what} {', '.join(names[:_NAMES_SHOWN])}{more}"]
