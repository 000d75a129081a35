"""Attention on CPUs by a compiled kernel that reads pages in place: engine/kernels/cpu/attention.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from common.kv_groups import KVHeads
from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.step_inputs import Ints
from engine.kernels.cpu.library import CpuKernels, Step
from engine.kv.cache.pool import KVPool
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.cpu_ops import TableRotation
from engine.modeling.layers.ops.ops import Rotation


class CpuAttention:
    """One call a layer: rotates queries and keys, writes keys and values into the pool, and attends."""

    def __init__(
        self,
        pool: KVPool,
        num_heads: int,
        layers: Sequence[LayerAttention],
        kernels: CpuKernels,
        *,
        uniform: bool = False,
    ) -> None:
        """`uniform`: a token's result does not depend on what is computed with it; decodes are slower."""
        self._pool = pool
        self._num_heads = num_heads
        self._rules = layers
        self._kernels = kernels
        self._uniform = uniform
        sources = [layer if rule.source is None else rule.source for layer, rule in enumerate(layers)]
        self._layers = [pool.layer(source) for source in sources]
        self._groups = [pool.places[source][0] for source in sources]
        self._steps: list[Step] = []
        """Steps by group."""
        self._held: list[torch.Tensor | Ints] = []
        """Tensors that the steps point to; they must not be freed before the last layer."""

    def prepare(self, batch: Batch) -> None:
        self._held = [batch.query_indptr, batch.positions]
        self._steps = [
            self._step(batch, group, heads)
            for group, heads in zip(batch.groups, self._pool.heads, strict=True)
        ]

    def _step(self, batch: Batch, group: GroupTables, heads: KVHeads) -> Step:
        pool, lists = self._pool, group.block_tables
        arrays = (batch.query_indptr, group.context_lens, lists.indptr, lists.pages)
        self._held += [*arrays, group.slot_mapping]
        return Step(
            self._kernels.products,
            torch.get_num_threads(),
            batch.num_rows,
            batch.num_requests,
            self._num_heads,
            heads.count,
            heads.dim,
            pool.page_size,
            pool.tensor.stride(0),
            int(self._uniform),
            1,
            *(array.ctypes.data for array in arrays),
            group.slot_mapping.data_ptr(),
            batch.positions.data_ptr(),
        )

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        qkv, rule = qkv.contiguous(), self._rules[layer]
        step = self._steps[self._groups[layer]]
        kv_heads = 0 if rule.source is not None else self._pool.heads[self._groups[layer]].count
        step.stored = int(rule.source is None)
        step.angles = None
        if isinstance(rotation, TableRotation):
            step.angles = rotation.table.data_ptr()
            step.positions = rotation.positions.data_ptr()
        elif rotation is not None:
            queries_and_keys = qkv[:, : qkv.shape[1] - kv_heads]
            queries_and_keys.copy_(rotation.turn(queries_and_keys))
        step.sinks = None if rule.sinks is None else rule.sinks.data_ptr()
        step.window = rule.window or 0
        step.scale = rule.scale
        step.soft_cap = rule.soft_cap or 0.0
        out = qkv.new_empty(len(qkv), self._num_heads, qkv.shape[2])
        self._kernels.attend(step, self._layers[layer], qkv, out)
        return out
