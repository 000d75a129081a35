"""Attention of decodes: planned once a step, run once a layer.

What the kernel does is decided by one array of integers (decode_plan.py says what, decode_array.py where it
lies), so that a captured graph does another step's work when the array is another.
"""

from __future__ import annotations

import torch

from engine.attention.decode_array import Decodes, PlanFields
from engine.attention.decode_plan import DecodePlanner
from engine.attention.flashinfer_kernels import Heads
from engine.kernels.decode_attention import DecodeWorkspace, PlanTensors, attend

__all__ = ["DecodeAttention"]


class DecodeAttention:
    def __init__(self, heads: Heads, page_size: int, device: torch.device, *, max_requests: int) -> None:
        self._page_size = page_size
        self._device = device
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._planner = DecodePlanner(
            multiprocessors=multiprocessors, num_kv_heads=heads.kv, page_size=page_size
        )
        parts = self._planner.most_parts(max_requests)
        self._workspace = DecodeWorkspace(parts, max_requests, heads.query, heads.kv, heads.dim, device)
        self._plan: PlanTensors | None = None

    def ints_for(self, max_requests: int, max_pages: int) -> int:
        """How many integers a plan takes at most."""
        return PlanFields(max_requests, self._planner.most_parts(max_requests)).end + max_pages

    def plan(self, decodes: Decodes) -> None:
        """Of any number of requests, for a step that is launched kernel by kernel."""
        cut = self._planner.plan(decodes.block_tables.counts)
        fields = PlanFields(len(decodes.context_lens), len(cut.owners))
        packed = torch.from_numpy(fields.pack(decodes, cut, self._page_size))
        self._plan = _tensors(fields, packed.pin_memory().to(self._device, non_blocking=True))

    def plan_into(self, ints: torch.Tensor, decodes: Decodes) -> None:
        """Likewise for a graph of just so many requests, which reads `ints`."""
        cut = self._planner.plan(decodes.block_tables.counts)
        requests = len(decodes.context_lens)
        fields = PlanFields(requests, self._planner.most_parts(requests))
        packed = torch.from_numpy(fields.pack(decodes, cut, self._page_size))
        ints[: len(packed)].copy_(packed.pin_memory(), non_blocking=True)
        self._plan = _tensors(fields, ints)

    def run(self, q: torch.Tensor, pages: torch.Tensor, out: torch.Tensor) -> None:
        """Attend with q `[R, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`."""
        assert self._plan is not None, "plan comes first"
        attend(q, pages, self._plan, self._workspace, out)


def _tensors(fields: PlanFields, ints: torch.Tensor) -> PlanTensors:
    def part(begin: int, size: int) -> torch.Tensor:
        return ints[begin : begin + size]

    return PlanTensors(
        owners=part(fields.owners, fields.parts),
        indices=part(fields.indices, fields.parts),
        first_parts=part(fields.first_parts, fields.requests + 1),
        part_tokens=part(fields.part_tokens, 1),
        page_indptr=part(fields.page_indptr, fields.requests + 1),
        last_page_lens=part(fields.last_page_lens, fields.requests),
        pages=ints[fields.end :],
    )
