"""Attention of decodes: planned once per step, run once per layer.

The kernel reads its plan from one array of integers (engine/batch/decode_plan.py), so a captured graph
computes another step after the array is rewritten.
"""

from __future__ import annotations

import torch

from engine.attention.decode_planner import DecodePlanner
from engine.attention.flashinfer_kernels import Heads
from engine.batch.decode_plan import DecodePlan, Decodes, PlanLayout
from engine.kernels.decode_attention import DecodeWorkspace, attend

__all__ = ["DecodeAttention"]


class DecodeAttention:
    def __init__(self, heads: Heads, page_size: int, device: torch.device, *, max_requests: int) -> None:
        self._device = device
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._planner = DecodePlanner(
            multiprocessors=multiprocessors, num_kv_heads=heads.kv, page_size=page_size
        )
        parts = self._planner.most_parts(max_requests)
        self._workspace = DecodeWorkspace(parts, max_requests, heads.query, heads.kv, heads.dim, device)
        self._plan: DecodePlan[torch.Tensor] | None = None

    def ints_for(self, max_requests: int, max_pages: int) -> int:
        """Upper bound of the integers in a plan."""
        return PlanLayout(max_requests, self._planner.most_parts(max_requests)).fixed_ints + max_pages

    def plan(self, decodes: Decodes) -> None:
        """Plan any number of requests, for a step that is launched eagerly."""
        plan = self._planner.plan(decodes)
        layout = PlanLayout(len(decodes.context_lens), len(plan.owners))
        packed = torch.from_numpy(layout.pack(plan))
        self._plan = _views(layout, packed.pin_memory().to(self._device, non_blocking=True))

    def plan_into(self, ints: torch.Tensor, decodes: Decodes) -> None:
        """Plan for a graph of exactly this number of requests, which reads `ints`."""
        requests = len(decodes.context_lens)
        layout = PlanLayout(requests, self._planner.most_parts(requests))
        packed = torch.from_numpy(layout.pack(self._planner.plan(decodes)))
        ints[: len(packed)].copy_(packed.pin_memory(), non_blocking=True)
        self._plan = _views(layout, ints)

    def run(self, q: torch.Tensor, pages: torch.Tensor, out: torch.Tensor) -> None:
        """Attend with q `[R, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`."""
        assert self._plan is not None, "plan comes first"
        attend(q, pages, self._plan, self._workspace, out)


def _views(layout: PlanLayout, ints: torch.Tensor) -> DecodePlan[torch.Tensor]:
    """The fields as views of `ints`; the remainder is `pages`."""
    *fields, _ = zip(layout.offsets, layout.sizes, strict=True)
    views = [ints[offset : offset + size] for offset, size in fields]
    return DecodePlan._make([*views, ints[layout.fixed_ints :]])
