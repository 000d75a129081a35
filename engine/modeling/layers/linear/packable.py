"""Layers whose weights are packed for speed once they are loaded, and can be filled again in place.

Compiled kernels and captured CUDA graphs hold the addresses of packed weights. So new weights are packed as
those of the first load were, and then copied over them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn


class LayoutChanged(ValueError):
    """New weights do not fit in the memory of the old ones: in some formats, values decide the layout."""


class Packable(nn.Module, ABC):
    @abstractmethod
    def pack(self) -> None:
        """Repack the weights, once they are final, in the layout that the device multiplies fastest."""

    @abstractmethod
    def unpacked(self) -> Packable:
        """A layer of the same shape and format whose weights are still to be loaded, on torch's current
        default device and dtype."""

    @abstractmethod
    def packed(self) -> object:
        """What products are computed with: tensors, and what must not change."""

    def refill(self, loaded: Packable) -> None:
        """Overwrite the weights with those of `loaded`, a layer from `unpacked` that was loaded and packed.

        Raises LayoutChanged, and leaves the weights as they are, if they are laid out differently.
        """
        for target, source in list(_pairs(self.packed(), loaded.packed())):
            target.copy_(source)


def _pairs(target: object, source: object) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of two objects of one structure. All else in them must be equal; fields of dataclasses that
    are not compared are left out."""
    if isinstance(target, Tensor) and isinstance(source, Tensor):
        if not _holds(target, source):
            raise LayoutChanged(f"{_described(target)} cannot hold {_described(source)}")
        yield target, source
    elif type(target) is not type(source):
        raise LayoutChanged(f"{_described(target)} cannot become {_described(source)}")
    elif is_dataclass(target):
        for field in fields(target):
            if field.compare:
                yield from _pairs(getattr(target, field.name), getattr(source, field.name))
    elif isinstance(target, Mapping) and isinstance(source, Mapping):
        yield from _pairs(list(target), list(source))
        yield from _pairs(list(target.values()), list(source.values()))
    elif isinstance(target, list | tuple) and isinstance(source, list | tuple):
        if len(target) != len(source):
            raise LayoutChanged(f"{len(target)} parts cannot become {len(source)}")
        for one, other in zip(target, source, strict=True):
            yield from _pairs(one, other)
    elif target != source:
        raise LayoutChanged(f"{target} cannot become {source}")


def _holds(target: Tensor, source: Tensor) -> bool:
    """Whether all values of `source` are the same in `target`."""
    if target.shape != source.shape or target.is_mkldnn != source.is_mkldnn:
        return False
    return target.dtype == source.dtype or torch.equal(source.to(target.dtype).to(source.dtype), source)


def _described(part: object) -> str:
    if isinstance(part, Tensor):
        return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"
    return type(part).__name__
