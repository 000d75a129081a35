"""Attention of decodes: planned once per step, run once per layer.

The kernel reads its plan from one array of integers (engine/batch/decode_plan.py), so a captured graph
computes another step after the array is rewritten.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.attention.decode_planner import DecodePlanner
from engine.attention.windows import within
from engine.batch.decode_plan import DecodePlan, Decodes, PlanLayout
from engine.kernels.decode_attention import DecodeWorkspace, attend
from engine.layers.layer_attention import LayerAttention

__all__ = ["DecodeAttention"]


class DecodeAttention:
    """Of the layers that attend by one rule."""

    def __init__(
        self,
        planner: DecodePlanner,
        workspace: DecodeWorkspace,
        rule: LayerAttention,
        page_size: int,
        device: torch.device,
    ) -> None:
        """`rule`: without sinks. All layers of a pool share the planner and the workspace."""
        self._planner = planner
        self._workspace = workspace
        self._rule = rule
        self._page_size = page_size
        self._device = device
        self._plan: DecodePlan[torch.Tensor] | None = None

    def ints_for(self, max_requests: int, max_pages: int) -> int:
        """Upper bound of the integers in a plan."""
        return PlanLayout(max_requests, self._planner.most_parts(max_requests)).fixed_ints + max_pages

    def plan(self, decodes: Decodes) -> None:
        """Plan any number of requests, for a step that is launched eagerly."""
        plan = self._planner.plan(self._seen(decodes))
        layout = PlanLayout(len(decodes.context_lens), len(plan.owners))
        packed = torch.from_numpy(layout.pack(plan))
        self._plan = _views(layout, packed.pin_memory().to(self._device, non_blocking=True))

    def plan_into(self, ints: torch.Tensor, decodes: Decodes) -> None:
        """Plan for a graph of exactly this number of requests, which reads `ints`."""
        requests = len(decodes.context_lens)
        layout = PlanLayout(requests, self._planner.most_parts(requests))
        packed = torch.from_numpy(layout.pack(self._planner.plan(self._seen(decodes))))
        ints[: len(packed)].copy_(packed.pin_memory(), non_blocking=True)
        self._plan = _views(layout, ints)

    def run(
        self,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """Attend with q `[R, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`.

        `sinks`: [heads] float32. `scales`: of the stored keys and values.
        """
        assert self._plan is not None, "plan comes first"
        rule = self._rule
        attend(
            q,
            pages,
            self._plan,
            self._workspace,
            out,
            scale=rule.scale * scales[0],
            window=rule.window,
            soft_cap=rule.soft_cap,
            sinks=sinks,
            value_scale=scales[1],
        )

    def _seen(self, decodes: Decodes) -> Decodes:
        """The part of the contexts that the layers' window covers."""
        one = np.ones(len(decodes.context_lens), dtype=np.int64)
        return Decodes(
            *within(self._rule.window, one, decodes.context_lens, decodes.block_tables, self._page_size)
        )


def _views(layout: PlanLayout, ints: torch.Tensor) -> DecodePlan[torch.Tensor]:
    """The fields as views of `ints`; the remainder is `pages`."""
    *fields, _ = zip(layout.offsets, layout.sizes, strict=True)
    views = [ints[offset : offset + size] for offset, size in fields]
    return DecodePlan._make([*views, ints[layout.fixed_ints :]])
