"""Which layers of a model adapters can change, and which part of an adapter each rank has there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.adapters.peft_folder import LowRankPair, StoredAdapter
from engine.errors import AdapterRefused
from engine.model_config.shard import Cut
from engine.modeling.layers.linear.linear_layer import Linear
from engine.modeling.models.base import CausalLM
from engine.modeling.models.weight_table import ParamSlice


@dataclass(frozen=True, slots=True)
class Target:
    """Where the pair of one of a checkpoint's modules goes."""

    layer: str
    """Path of the model's layer, which may merge several modules."""
    rows: range
    """Output features of that layer."""
    shape: tuple[int, int]
    """Features (out, in) of the whole module, over all ranks."""
    cut: Cut | None

    def part(self, pair: LowRankPair) -> LowRankPair:
        """What this rank computes with."""
        if self.cut is None:
            return pair
        if self.cut.axis == 0:
            return LowRankPair(pair.a, torch.cat([pair.b[_slice(each)] for each in self.cut.stretches]))
        return LowRankPair(torch.cat([pair.a[:, _slice(each)] for each in self.cut.stretches], dim=1), pair.b)


class AdapterTargets:
    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._table = model.weight_table()
        self.of = {
            source: _target(place, layer)
            for source, place in self._table.items()
            if (layer := _adaptable(model, place)) is not None
        }
        """AdapterTargets by modules of the checkpoint."""

    def found(self, adapter: StoredAdapter, max_rank: int) -> dict[str, tuple[Target, LowRankPair]]:
        """The pairs of an adapter with their targets, by modules of the checkpoint. Raises AdapterRefused."""
        return {
            module: self._found(adapter, module, pair, max_rank) for module, pair in adapter.pairs.items()
        }

    def _found(
        self, adapter: StoredAdapter, module: str, pair: LowRankPair, max_rank: int
    ) -> tuple[Target, LowRankPair]:
        source = self._model.source_name(f"{module}.weight").removesuffix(".weight")
        target = self.of.get(source)
        if target is None:
            raise AdapterRefused(f"the adapter {adapter.name} changes {module}: {self._reason(source)}")
        if pair.rank > max_rank:
            raise AdapterRefused(
                f"the adapter {adapter.name} has rank {pair.rank}; --max-lora-rank is {max_rank}"
            )
        shape = len(pair.b), pair.a.shape[1]
        if shape != target.shape:
            raise AdapterRefused(
                f"the adapter {adapter.name} is of another base model: {module} has {target.shape[0]} output"
                f" and {target.shape[1]} input features here, not {shape[0]} and {shape[1]}"
            )
        return target, pair

    def _reason(self, source: str) -> str:
        place = self._table.get(source)
        if ".experts." in source or (place is not None and place.expert is not None):
            return "adapters of experts are not supported"
        if source.endswith(("embed_tokens", "lm_head", "wte", "wpe")):
            return "adapters of embeddings and of the head are not supported"
        if source.endswith("kv_b_proj"):
            return "latent attention has no such product, its matrices are absorbed"
        if place is None:
            return "the base model has no such module"
        return "it is no linear layer that adapters can change"


def _adaptable(model: CausalLM, place: ParamSlice) -> Linear | None:
    layer = model.get_submodule(place.module) if place.expert is None else None
    is_one = isinstance(layer, Linear) and layer.adaptable and layer is not model.head
    return layer if is_one and isinstance(layer, Linear) else None


def _target(place: ParamSlice, layer: Linear) -> Target:
    rows = range(place.start, place.start + (place.rows or layer.out_features))
    shape, cut = [len(rows), layer.in_features], place.cut
    if cut is not None:
        shape[cut.axis] = cut.extent
    return Target(place.module, rows, (shape[0], shape[1]), cut)


def _slice(part: range) -> slice:
    return slice(part.start, part.stop, part.step)
