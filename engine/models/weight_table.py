"""Where the tensors of a checkpoint go in a model whose projections are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from engine.spec.shard import Cut

__all__ = ["ParamSlice", "WeightTable", "per_layer"]


@dataclass(frozen=True, slots=True)
class ParamSlice:
    """A place in a module's parameters: all rows, or those that one of several merged projections owns."""

    module: str
    """Path of the module; its `weight` and, where it has one, `bias` are filled alike."""
    start: int = 0
    """First row."""
    rows: int | None = None
    """Number of rows; None: all."""
    transposed: bool = False
    """Whether the checkpoint stores the weight as [in, out]."""
    cut: Cut | None = None
    """What of the checkpoint's tensor belongs here, its axis 0 being [out]; None: all of it."""


WeightTable: TypeAlias = Mapping[str, ParamSlice]
"""Module path in the checkpoint -> place in the model."""


def per_layer(
    num_layers: int, source: str, target: str, table: WeightTable
) -> Iterable[tuple[str, ParamSlice]]:
    """Repeat the table of one layer for all: in the prefixes `source` and `target`, `{}` is the layer."""
    for layer in range(num_layers):
        for name, slot in table.items():
            yield source.format(layer) + name, replace(slot, module=target.format(layer) + slot.module)
