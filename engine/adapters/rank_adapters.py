"""The adapters of a model, or of one rank's part of it: in host memory, and in slots on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import torch
from torch import Tensor

from engine.adapters.additions import (
    AdaptedLayer,
    AdapterRows,
    CpuAddition,
    GpuAddition,
    Pieces,
    SlottedAddition,
)
from engine.adapters.peft_folder import LowRankPair, StoredAdapter
from engine.adapters.targets import AdapterTargets
from engine.config import LoraConfig
from engine.errors import AdapterRefused
from engine.modeling.models.base import CausalLM

_ALIGNED: Final = 64
"""Elements."""
_LEAST_RANK: Final = 16
"""Least depth of products on tensor cores."""

HeldAdapter: TypeAlias = Mapping[str, Pieces]
"""One rank's part of an adapter, as it computes with it: pieces by paths of layers."""


class RankAdapters:
    def __init__(self, model: CausalLM, config: LoraConfig) -> None:
        """Adapters are added to the layers of `model` from now on, also in graphs captured later."""
        self._config = config
        self._like = model.embed.weight
        self._vocab_size = model.spec.vocab_size
        self._targets = AdapterTargets(model)
        self.rows = AdapterRows(self._like.device)
        self._held: dict[bytes, HeldAdapter] = {}
        pieces: dict[str, set[tuple[int, int]]] = {}
        for target in self._targets.of.values():
            pieces.setdefault(target.layer, set()).add((target.rows.start, target.rows.stop))
        self._additions = {
            layer: self._addition(model, layer, tuple(range(*piece) for piece in sorted(found)))
            for layer, found in pieces.items()
        }
        if not self._additions:
            raise AdapterRefused(
                f"no layer of {model.spec.architecture} can take adapters; start without --enable-lora"
            )
        model.adapter_rows = self.rows

    def part(self, adapter: StoredAdapter) -> HeldAdapter:
        """This rank's part. From any thread. Raises AdapterRefused for what the model cannot take."""
        if max(adapter.invocation, default=0) >= self._vocab_size:
            raise AdapterRefused(
                f"the adapter {adapter.name} is activated by token {max(adapter.invocation)}, and the model's"
                f" vocabulary has {self._vocab_size}"
            )
        found = self._targets.found(adapter, self._config.max_lora_rank).values()
        parts = [(target, target.part(pair)) for target, pair in found]
        stored = iter(self._stored([half for _, pair in parts for half in (pair.a, pair.b)]))
        held: dict[str, dict[int, LowRankPair]] = {}
        for target, _ in parts:
            number = self._additions[target.layer].place.pieces.index(target.rows)
            held.setdefault(target.layer, {})[number] = LowRankPair(next(stored), next(stored))
        return held

    def hold(self, digest: bytes, held: HeldAdapter) -> None:
        """Keep it in host memory."""
        self._held[digest] = held

    def drop(self, digest: bytes) -> None:
        self._held.pop(digest, None)

    def fill(self, slot: int, digest: bytes) -> None:
        """Replace what is in a slot. Enqueued on the device, after the steps before."""
        held = self._held[digest]
        for layer, addition in self._additions.items():
            addition.fill(slot, held.get(layer, {}))

    def _addition(self, model: CausalLM, path: str, pieces: tuple[range, ...]) -> SlottedAddition:
        layer = model.get_submodule(path)
        place, config = AdaptedLayer(self.rows, layer, pieces), self._config  # type: ignore[arg-type]
        if self._like.device.type == "cpu":
            addition: SlottedAddition = CpuAddition(place, config.max_loras, self._like.dtype)
        else:
            rank = max(_LEAST_RANK, 1 << (config.max_lora_rank - 1).bit_length())
            addition = GpuAddition(place, config.max_loras, rank, self._like)
        layer.addition = addition  # type: ignore[assignment]
        return addition

    def _stored(self, matrices: Sequence[Tensor]) -> list[Tensor]:
        """Copies that can be sent to the device, in one block: pinning hundreds takes seconds."""
        sizes = [matrix.numel() for matrix in matrices]
        starts = [0, *accumulate(-(-size // _ALIGNED) * _ALIGNED for size in sizes)]
        pinned = self._like.device.type == "cuda"
        block = torch.empty(starts[-1], dtype=self._like.dtype, device="cpu", pin_memory=pinned)
        copies = [
            block[start : start + size].view(matrix.shape)
            for matrix, start, size in zip(matrices, starts, sizes, strict=False)
        ]
        for copy, matrix in zip(copies, matrices, strict=True):
            copy.copy_(matrix)
        return copies


def num_bytes(adapter: StoredAdapter, dtype: torch.dtype) -> int:
    """Host memory of an adapter, over all ranks."""
    return sum((pair.a.numel() + pair.b.numel()) * dtype.itemsize for pair in adapter.pairs.values())
