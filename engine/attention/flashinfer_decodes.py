"""Attention of decodes: flashinfer's FA2 kernel, by a plan of our own.

The kernel reads from one array of integers which thread block computes what, and where the results go. That
array is ours (decode_array.py); decode_plan.py says why. The rows of a thread block are the query heads of a
key head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from engine.attention.decode_array import Decodes, PlanFields
from engine.attention.decode_plan import DecodePlanner
from engine.attention.flashinfer_kernels import Heads, Kernel, Tables, kernel_module, run_paged

__all__ = ["DecodeKernel"]

_QUERY_TILES: Final = (16, 64, 128)
"""Rows that a thread block of the kernel may have."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """What of a plan is baked into a captured graph: addresses, and the size of the grid."""

    plan: list[int]
    ints: torch.Tensor
    tables: Tables


class DecodeKernel:
    """Planned once a step, run once a layer."""

    def __init__(
        self, heads: Heads, page_size: int, dtype: torch.dtype, device: torch.device, *, max_requests: int
    ) -> None:
        group = heads.query // heads.kv
        if group > _QUERY_TILES[-1]:
            raise ValueError(f"{group} query heads share a key head: the kernel takes {_QUERY_TILES[-1]}")
        self._tile = next(tile for tile in _QUERY_TILES if tile >= group)
        self._page_size = page_size
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        self._planner = DecodePlanner(
            multiprocessors=multiprocessors, num_kv_heads=heads.kv, page_size=page_size
        )
        # For each part and query head a result in the model's dtype; behind them all, a float32 score.
        rows = self._planner.most_parts(max_requests) * heads.query
        self._scores_at = rows * heads.dim * dtype.itemsize
        self._results = torch.empty(self._scores_at + 4 * rows, dtype=torch.uint8, device=device)
        self._module = kernel_module(Kernel.FA2, heads, dtype)
        self._launch: _Launch | None = None

    def ints_for(self, max_requests: int, max_pages: int) -> int:
        """How many integers a plan takes at most."""
        return PlanFields(max_requests, self._planner.most_parts(max_requests)).end + max_pages

    def fits_graph(self, decodes: Decodes) -> bool:
        """Whether the graph for so many requests, whose grid is fixed, is right for their contexts."""
        return self._grid(len(decodes.context_lens)) > len(decodes.context_lens) or self._planner.keeps_whole(
            decodes.page_lists.counts
        )

    def plan(self, decodes: Decodes) -> None:
        """Of any number of requests, for a step that is launched kernel by kernel."""
        cut = self._planner.plan(decodes.page_lists.counts)
        fields = PlanFields(len(decodes.context_lens), len(cut.owners))
        packed = fields.pack(decodes, cut, self._page_size)
        ints = torch.from_numpy(packed).pin_memory().to(self._results.device, non_blocking=True)
        self._launch = self._launch_of(fields, ints)

    def plan_into(self, ints: torch.Tensor, decodes: Decodes) -> None:
        """Likewise for a graph of just so many requests, which reads `ints`. They must fit it."""
        cut = self._planner.plan(decodes.page_lists.counts)
        requests = len(decodes.context_lens)
        fields = PlanFields(requests, self._grid(requests))
        packed = fields.pack(decodes, cut, self._page_size)
        ints[: len(packed)].copy_(torch.from_numpy(packed).pin_memory(), non_blocking=True)
        self._launch = self._launch_of(fields, ints)

    def run(self, q: torch.Tensor, pages: torch.Tensor, out: torch.Tensor) -> None:
        """Attend with q `[R, heads, dim]` to one layer of the pool, `[page, 2, kv_head, token, dim]`."""
        assert self._launch is not None, "plan comes first"
        plan, ints, tables = self._launch.plan, self._launch.ints, self._launch.tables
        run_paged(self._module, self._results, ints, plan, q, pages, tables, out, causal=False)

    def _grid(self, requests: int) -> int:
        """Parts for which a graph has room. A large batch has just its own: results need no merging then."""
        return requests if self._planner.is_large(requests) else self._planner.most_parts(requests)

    def _launch_of(self, fields: PlanFields, ints: torch.Tensor) -> _Launch:
        split = fields.parts > fields.requests
        # flashinfer's PrefillPlanInfo: offsets are in bytes.
        plan = [
            fields.parts,
            fields.requests,
            4 * fields.num_rows,
            self._tile,
            4 * fields.owners,
            4 * fields.query_tiles,
            4 * fields.indices,
            4 * fields.first_parts,
            # Where a request's result goes: among those of parts, or to its row of the output.
            4 * (fields.first_parts if split else fields.query_indptr),
            4 * fields.part_tokens,
            0,
            self._scores_at,
            4 * fields.valid,
            True,  # the grid may be larger than the plan
            split,
        ]
        ends = fields.requests + 1
        tables = Tables(
            ints[:ends],
            ints[fields.page_indptr : fields.page_indptr + ends],
            ints[fields.end :],
            ints[fields.last_page_lens : fields.last_page_lens + fields.requests],
        )
        return _Launch(plan, ints, tables)
