"""Attention of decodes: planned once per step, run once per layer.

The kernel reads its plan from one array of integers (engine/core/batch/decode_plan.py), so a captured graph
computes another step after the array is rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.core.batch.decode_plan import DecodePlan, Decodes, PlanLayout
from engine.core.batch.step_inputs import Ints
from engine.device.small_copies import copy, to_device
from engine.device.staging import Staging
from engine.kernels.attention.decode_attention import DecodeWorkspace, NewTokens, attend
from engine.mixers.attention.decode_planner import DecodePlanner
from engine.modeling.layers.layer_attention import LayerAttention


class DecodeAttention:
    """Decode attention of the layers that attend by one rule."""

    def __init__(
        self,
        planner: DecodePlanner,
        workspace: DecodeWorkspace,
        rule: LayerAttention,
        device: torch.device,
    ) -> None:
        """`rule`: without sinks. All layers of a pool share the workspace."""
        self._planner = planner
        self._workspace = workspace
        self._rule = rule
        self._device = device
        self._staging = Staging(torch.int32, device)
        self._plans: list[DecodePlan[torch.Tensor]] = []
        self._graph_ints: list[torch.Tensor] = []
        """For each table: the plan that graphs of all sizes read; each size has its own layout."""
        self._graph_plans: dict[int, tuple[PlanLayout, list[DecodePlan[torch.Tensor]]]] = {}
        """Plans by graph size."""

    def init_graphs(self, max_requests: int, max_pages: int, num_tables: int) -> None:
        """Allocate the plans that graphs read."""
        ints = PlanLayout(max_requests, self._planner.most_parts(max_requests)).fixed_ints + max_pages
        self._graph_ints = list(torch.zeros((num_tables, ints), dtype=torch.int32, device=self._device))

    def plan(self, decodes: Sequence[Decodes]) -> None:
        """Plan any number of requests, for a step that is launched eagerly.

        `decodes` differ in their pages alone: layers of several groups attend by the same rule.
        """
        plans = self._planned(decodes)
        layout = PlanLayout(len(decodes[0].context_lens), len(plans[0].owners))
        self._plans = [_views(layout, to_device(self._packed(layout, plan), self._device)) for plan in plans]

    def plan_for_graph(self, decodes: Sequence[Decodes]) -> None:
        """The same for a graph of exactly this number of requests."""
        requests = len(decodes[0].context_lens)
        if requests not in self._graph_plans:
            layout = PlanLayout(requests, self._planner.most_parts(requests))
            self._graph_plans[requests] = layout, [_views(layout, ints) for ints in self._graph_ints]
        layout, self._plans = self._graph_plans[requests]
        for plan, ints in zip(self._planned(decodes), self._graph_ints, strict=True):
            packed = self._packed(layout, plan)
            copy(ints[: len(packed)], packed)

    def run(
        self,
        table: int,
        q: torch.Tensor,
        pages: torch.Tensor,
        out: torch.Tensor,
        sinks: torch.Tensor | None,
        scales: tuple[float, float] = (1.0, 1.0),
        new: NewTokens | None = None,
    ) -> None:
        """Attend with q `[R, heads, ..]` to one layer of the pool, `[page, 2, kv_head, token, dim]`.

        `table`: which of the planned ones has the layer's pages. `sinks`: [heads] float32. `scales`: of the
        stored keys and values. `new`: see `attend`.
        """
        rule = self._rule
        attend(
            q,
            pages,
            self._plans[table],
            self._workspace,
            out,
            scale=rule.scale * scales[0],
            window=rule.window,
            soft_cap=rule.soft_cap,
            sinks=sinks,
            value_scale=scales[1],
            new=new,
        )

    def _planned(self, decodes: Sequence[Decodes]) -> list[DecodePlan[Ints]]:
        first = self._planner.plan(decodes[0])
        return [first, *(first._replace(pages=other.block_tables.pages) for other in decodes[1:])]

    def _packed(self, layout: PlanLayout, plan: DecodePlan[Ints]) -> torch.Tensor:
        packed, ints = self._staging.take(layout.ints(plan))
        layout.pack(plan, ints)
        return packed


def _views(layout: PlanLayout, ints: torch.Tensor) -> DecodePlan[torch.Tensor]:
    """The fields as views of `ints`; the remainder is `pages`."""
    *fields, _ = zip(layout.offsets, layout.sizes, strict=True)
    views = [ints[offset : offset + size] for offset, size in fields]
    return DecodePlan._make([*views, ints[layout.fixed_ints :]])
