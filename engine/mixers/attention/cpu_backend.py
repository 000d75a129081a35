"""Attention on CPUs by a compiled kernel that reads pages in place: engine/kernels/cpu/attention.h."""

from __future__ import annotations

from collections.abc import Sequence

import torch

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
        self, pool: KVPool, num_heads: int, layers: Sequence[LayerAttention], kernels: CpuKernels
    ) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._rules = layers
        self._kernels = kernels
        self._layers = [pool.layer(i) for i in range(len(pool.places))]
        self._groups = [group for group, _ in pool.places]
        self._steps: list[Step] = []
        """Steps by group."""
        self._held: list[torch.Tensor | Ints] = []
        """Tensors that the steps point to; they must not be freed before the last layer."""

    def prepare(self, batch: Batch) -> None:
        self._held = [batch.query_indptr, batch.positions]
        self._steps = [self._step(batch, group) for group in batch.groups]

    def _step(self, batch: Batch, group: GroupTables) -> Step:
        pool, lists = self._pool, group.block_tables
        arrays = (batch.query_indptr, group.context_lens, lists.indptr, lists.pages)
        self._held += [*arrays, group.slot_mapping]
        return Step(
            self._kernels.products,
            torch.get_num_threads(),
            batch.num_rows,
            batch.num_requests,
            self._num_heads,
            pool.num_kv_heads,
            pool.head_dim,
            pool.page_size,
            pool.tensor.stride(0),
            *(array.ctypes.data for array in arrays),
            group.slot_mapping.data_ptr(),
            batch.positions.data_ptr(),
        )

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        qkv, rule = qkv.contiguous(), self._rules[layer]
        step = self._steps[self._groups[layer]]
        step.angles = None
        if isinstance(rotation, TableRotation):
            step.angles = rotation.table.data_ptr()
        elif rotation is not None:
            queries_and_keys = qkv[:, : -self._pool.num_kv_heads]
            queries_and_keys.copy_(rotation.turn(queries_and_keys))
        step.sinks = None if rule.sinks is None else rule.sinks.data_ptr()
        step.window = rule.window or 0
        step.scale = rule.scale
        step.soft_cap = rule.soft_cap or 0.0
        out = qkv.new_empty(len(qkv), self._num_heads, self._pool.head_dim)
        self._kernels.attend(step, self._layers[layer], qkv, out)
        return out
