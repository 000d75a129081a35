"""Where the tensors of a checkpoint go: parts of parameters, counted in the entries of their format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn

from engine.model_config.errors import UnsupportedModel, WeightsError
from engine.model_config.shard import Cut
from engine.modeling.layers.linear.linear_layer import Slot, slots_of
from engine.modeling.models.base import CausalLM
from engine.modeling.models.weight_table import ParamSlice

_CONVERTING: Final = Lock()
_FILLING: Final = Lock()
"""Held while merged projections, on several threads, fill the same target."""

_NUMBERS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""What weights and scales in any floating-point type are converted to."""


Parts: TypeAlias = Sequence[tuple[str, ParamSlice]]
"""Modules of a checkpoint, and what they fill of one module of a model."""


def places_of(model: CausalLM) -> dict[str, list[Place]]:
    """Every tensor that the checkpoint must contain, with the places that it fills.

    Raises:
        UnsupportedModel: a projection or a rank's part of one ends within an entry, such as a block's scale.
    """
    places: dict[str, list[Place]] = {}
    for path, parts in parts_by_module(model).items():
        places |= places_in(model.get_submodule(path), parts)
    return places


def parts_by_module(model: CausalLM) -> dict[str, Parts]:
    """The model's weight table, by paths of its modules."""
    found: dict[str, list[tuple[str, ParamSlice]]] = {}
    for source, part in model.weight_table().items():
        found.setdefault(part.module, []).append((source, part))
    return {**found}


def places_in(module: nn.Module, parts: Parts) -> dict[str, list[Place]]:
    """As `places_of`, of one module."""
    places: dict[str, list[Place]] = {}
    slots = slots_of(module)
    for source, part in parts:
        for slot in slots:
            name = f"{source}.{slot.source}"
            places.setdefault(name, []).append(_place(name, part, slot))
    return places


@dataclass(frozen=True, slots=True)
class Place:
    """The part of a parameter that one tensor of the checkpoint, or a cut of it, fills."""

    target: Tensor
    slot: Slot
    transposed: bool
    cut: Cut | None
    """Counted in entries."""

    def fill(
        self, tensor: Tensor, name: str, copy: Callable[[Tensor, Tensor], object] = Tensor.copy_
    ) -> None:
        """`copy`: to its first argument.

        Raises WeightsError if the tensor has another shape or kind of values than expected.
        """
        value = self.check(tensor, name)
        if self.slot.single:
            self.target.copy_(value.reshape(()))
            return
        for target, part in self._parts(value):
            if self.slot.convert is not None:
                _fill_converted(target, part, self.slot.convert)
            elif self.slot.tile[0] is None:
                _fill_once(target, part, name)
            else:
                copy(target, part)

    def check(self, tensor: Tensor, name: str) -> Tensor:
        """The tensor with the dimensions of the target. Raises what `fill` raises."""
        self._require_kind(tensor, name)
        value = tensor.t() if self.transposed else tensor
        if self.slot.tile[0] is None:
            value = tensor.unsqueeze(0)
        value = self._repeated(value, name)
        self._require_shape(value, name)
        return value

    def _parts(self, value: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each stretch of the tensor, with the part of the target that it fills."""
        if self.cut is None:
            yield self.target, value
            return
        axis, filled = self.cut.axis, 0
        for stretch in self.cut.stretches:
            part = value[(slice(None),) * axis + (slice(stretch.start, stretch.stop, stretch.step),)]
            if self.slot.summary and axis == 1:
                yield self.target, part
            else:
                yield self.target.narrow(axis, filled, len(stretch)), part
            filled += len(stretch)

    def _require_kind(self, value: Tensor, name: str) -> None:
        """Values of a few bits, and words of several, mean something else as numbers of another kind."""
        target = self.target.dtype
        if target is torch.int64:  # token ids
            fits = not value.is_floating_point()
        elif target in _NUMBERS or self.slot.convert is not None:
            fits = value.is_floating_point()
        else:
            fits = value.dtype == target or self.slot.tile[0] is None
        if not fits:
            raise WeightsError(f"{name} is {_named(value.dtype)}, but config.json asks for {_named(target)}")

    def _repeated(self, value: Tensor, name: str) -> Tensor:
        if self.slot.rows == 1:
            return value
        extent = len(self.target) if self.cut is None else self.cut.extent
        if len(value) != -(-extent // self.slot.rows):
            raise WeightsError(f"{name} has {len(value)} rows, but config.json asks for {extent} in blocks")
        return value.repeat_interleave(self.slot.rows, 0)[:extent]

    def _require_shape(self, value: Tensor, name: str) -> None:
        if self.slot.single:
            shape = [] if not value.dim() else [1]
        else:
            shape = list(self.target.shape)
            if self.cut is not None:
                shape[self.cut.axis] = self.cut.extent
            if self.slot.summary:
                shape[1:] = value.shape[1:]
        if list(value.shape) != shape:
            raise WeightsError(f"{name} has shape {list(value.shape)}, but config.json asks for {shape}")


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _fill_converted(target: Tensor, value: Tensor, convert: Callable[[Tensor], Tensor]) -> None:
    """One after the other on a GPU, whose memory would hold the intermediate values of all threads."""
    with _CONVERTING if target.is_cuda else nullcontext():
        target.copy_(convert(value.to(target.device)))


def _fill_once(target: Tensor, value: Tensor, name: str) -> None:
    """Raises WeightsError if another projection has filled `target` with other values."""
    with _FILLING:
        if bool((target >= 0).all()) and not torch.equal(target, value.to(target)):
            raise WeightsError(f"{name} differs from that of the projections that are merged with it here")
        target.copy_(value)


def _place(name: str, part: ParamSlice, slot: Slot) -> Place:
    target = slot.target if part.expert is None else slot.target[part.expert]
    if part.rows is not None and slot.tile[0] is not None:
        (rows,) = _entries(name, slot, 0, [range(part.start, part.start + part.rows)])
        target = target.narrow(0, rows.start, len(rows))
    cut = part.cut
    # A bias has one entry per output feature: it is cut with the rows, and stays whole where columns are cut.
    if cut is not None and (cut.axis >= target.dim() or slot.tile[cut.axis] is None):
        cut = None
    if cut is not None:
        (whole,) = _entries(name, slot, cut.axis, [range(cut.extent)])
        stretches = _entries(name, slot, cut.axis, cut.stretches, extent=cut.extent)
        cut = Cut(cut.axis, whole.stop, tuple(stretches))
    transposed = target.dim() == 2 and part.transposed != slot.transposed
    return Place(target, slot, transposed, cut)


def _entries(
    name: str, slot: Slot, axis: int, features: list[range] | tuple[range, ...], extent: int | None = None
) -> list[range]:
    """Ranges of features as ranges of entries; only the last entry of a tensor may be incomplete."""
    tile = slot.tile[axis] or 1
    if tile == 1:
        return list(features)
    for stretch in features:
        if (
            stretch.step != 1
            or stretch.start % tile
            or (stretch.stop % tile and extent is not None and stretch.stop != extent)
        ):
            raise UnsupportedModel(
                f"{name} has one entry for {tile} features: {stretch.start} to {stretch.stop}, every"
                f" {stretch.step}, cannot be cut from it; use fewer ranks, or a checkpoint in another format"
            )
    return [range(stretch.start // tile, -(-stretch.stop // tile)) for stretch in features]
