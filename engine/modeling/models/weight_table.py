"""Maps the tensors of a checkpoint to the parameters of a model with merged projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from engine.model_config.shard import Cut


@dataclass(frozen=True, slots=True)
class ParamSlice:
    """Rows of a module's parameters: all of them, or those of one of several merged projections."""

    module: str
    """Path of the module. Its `weight` and, if it has one, its `bias` are filled the same way."""
    start: int = 0
    """First row."""
    rows: int | None = None
    """Number of rows; None: all."""
    expert: int | None = None
    """The expert, where the parameters have those of all experts."""
    transposed: bool = False
    """Whether the checkpoint stores the weight as [in, out]."""
    cut: Cut | None = None
    """The part of the checkpoint's tensor that belongs here, with axis 0 being [out]; None: all of it."""


WeightTable: TypeAlias = Mapping[str, ParamSlice]
"""Module path in the checkpoint -> place in the model."""


def per_layer(tables: Sequence[WeightTable], source: str, target: str) -> Iterable[tuple[str, ParamSlice]]:
    """Join the tables of all layers: `{}` in the prefixes `source` and `target` is the layer."""
    for layer, table in enumerate(tables):
        for name, slot in table.items():
            yield source.format(layer) + name, replace(slot, module=target.format(layer) + slot.module)
