"""Loads a model folder into a model on the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from common.progress import Progress, silent
from engine.device.cpu_threads import in_parallel
from engine.layers.factory import Layers
from engine.layers.linear_layer import slots_of
from engine.layers.select import ops_for
from engine.loader.dummy_weights import fill_randomly
from engine.loader.safetensors_reader import read_tensors, weight_files
from engine.models import registry
from engine.models.base import CausalLM
from engine.parallel.communicator import SINGLE_RANK, Communicator
from engine.spec.errors import WeightsError
from engine.spec.model_spec import ModelSpec
from engine.spec.shard import Cut

__all__ = ["load_model"]

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STAGE: Final = "Loading weights"
_NAMES_SHOWN: Final = 5


def load_model(
    folder: Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    load_format: str = "auto",
    seed: int = 0,
    progress: Progress = silent,
    communicator: Communicator = SINGLE_RANK,
) -> CausalLM:
    """Build the model of `folder` and fill its weights, from safetensors or, for "dummy", from `seed`.

    With tensor parallelism, only this rank's part. A few tensors at a time pass through host memory, so peak
    memory is little more than the model.

    Raises:
        UnsupportedModel: the model of config.json is not supported, or cannot be split over the ranks.
        WeightsError: files are missing, or their tensors do not match the model.
    """
    spec = ModelSpec.from_folder(folder)
    target = torch.device(device)
    progress("Preparing kernels", 0, 0)  # compiled at the first start on a machine
    with _defaults(target, _DTYPES[dtype]):
        layers = Layers(ops_for(target, _DTYPES[dtype]), communicator)
        model = registry.build(spec, layers)
    match load_format:
        case "auto":
            _fill(model, weight_files(folder), progress)
        case "dummy":
            fill_randomly(model, seed)
        case _:
            raise ValueError(f"load_format {load_format!r} is unknown; use auto or dummy")
    progress("Packing weights", 0, 0)
    model.pack()
    return model.eval()


@contextmanager
def _defaults(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Device and dtype of parameters created in this context."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True, slots=True)
class _Place:
    """The rows of a parameter that one tensor of the checkpoint, or a cut of it, fills."""

    rows: Tensor
    transposed: bool
    cut: Cut | None

    @property
    def source_shape(self) -> list[int]:
        """Shape of the whole tensor after transposing."""
        shape = list(self.rows.shape)
        if self.cut is not None:
            shape[self.cut.axis] = self.cut.extent
        return shape


@torch.no_grad()
def _fill(model: CausalLM, files: list[Path], progress: Progress) -> None:
    places = _places(model)
    unexpected: list[str] = []
    done, total = 0, sum(file.stat().st_size for file in files)
    progress(_STAGE, 0, total)
    for tensor in _copied(model, read_tensors(files), places, unexpected):
        done += tensor.nbytes
        progress(_STAGE, done, total)
    progress(_STAGE, total, total)
    if places or unexpected:
        problems = filter(None, (_listing("missing", list(places)), _listing("unexpected", unexpected)))
        raise WeightsError(
            f"the weights in {files[0].parent} are not those of its config.json: {'; '.join(problems)}"
        )


def _copied(
    model: CausalLM,
    tensors: Iterable[tuple[str, Tensor]],
    places: dict[str, _Place],
    unexpected: list[str],
) -> Iterator[Tensor]:
    """Each tensor, once it is copied to its place, which is removed from `places`."""

    def fill(named: tuple[str, Tensor, _Place | None]) -> Tensor:
        name, tensor, place = named
        if place is not None:
            with torch.inference_mode():  # this is another thread
                _copy(tensor, place, name)
        return tensor

    def placed() -> Iterator[tuple[str, Tensor, _Place | None]]:
        for name, tensor in tensors:
            source = model.source_name(name)
            place = places.pop(source, None)
            if place is None and not model.ignores(source):
                unexpected.append(name)
            yield name, tensor, place

    on_host = next(model.parameters()).device.type == "cpu"
    return in_parallel(fill, placed()) if on_host else map(fill, placed())


def _places(model: CausalLM) -> dict[str, _Place]:
    """Every tensor that the checkpoint must contain, with the place that it fills."""
    places = {}
    for source, part in model.weight_table().items():
        module: nn.Module = model.get_submodule(part.module)
        for slot in slots_of(module):
            target = slot.target if part.expert is None else slot.target[part.expert]
            count = target.shape[0] if part.rows is None else part.rows
            rows = target.narrow(0, part.start, count)
            # A bias has one entry per output feature: it is cut with the rows, and stays whole where columns
            # are cut.
            cut = part.cut if part.cut is not None and part.cut.axis < target.dim() else None
            places[f"{source}.{slot.source}"] = _Place(rows, part.transposed and target.dim() == 2, cut)
    return places


def _copy(tensor: Tensor, place: _Place, name: str) -> None:
    value = tensor.t() if place.transposed else tensor
    if list(value.shape) != place.source_shape:
        raise WeightsError(
            f"{name} has shape {list(value.shape)}, but config.json asks for {place.source_shape}"
        )
    if place.cut is None:
        place.rows.copy_(value)
        return
    filled = 0
    for stretch in place.cut.stretches:
        axis, length = place.cut.axis, len(stretch)
        place.rows.narrow(axis, filled, length).copy_(value.narrow(axis, stretch.start, length))
        filled += length


def _listing(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{what} {', '.join(names[:_NAMES_SHOWN])}{more}"
