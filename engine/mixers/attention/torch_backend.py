"""Attention in plain torch: for CPUs, and the oracle for every other backend.

Prompt chunks run one by one through causal SDPA. Decodes run in groups: contexts of similar length are
gathered into one padded buffer, because CPUs are fastest with one large call. All index arithmetic happens
once per step; a layer costs two scatters, and a gather and an SDPA per group.

Layers of one group with equal windows share a plan.

Grouped-query heads are never repeated: the query heads that share a key head become a broadcast dimension
in a chunk, and query rows in a decode, so that each key is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import torch

from common.kv_groups import KVHeads
from engine.core.batch.batch import Batch, GroupTables
from engine.core.batch.step_inputs import Ints
from engine.kv.cache.pool import KVPool, latents
from engine.mixers.attention.dense_attention import attend
from engine.mixers.attention.image_masks import mask_until, seen_by
from engine.modeling.layers.layer_attention import LayerAttention
from engine.modeling.layers.ops.ops import Rotation

QUERY_BLOCK: Final = 64
"""Query rows of a chunk per SDPA call. SDPA also computes masked scores, so small blocks waste less."""
GROUP_BYTES: Final = 32 << 20
"""Gathered keys and values of one group of decodes stay below this."""
MIN_FILL: Final = 0.75
"""A request joins a group only if its context is at least this part of the group's longest."""

Rows: TypeAlias = slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    rows: slice
    gather: torch.Tensor | None
    """Locations of the context's keys and values; None if the chunk is the whole context."""
    context_len: int
    """Tokens from the first page of the gather on."""
    seen: Ints | None = None
    """See `seen_by`."""


@dataclass(frozen=True, slots=True)
class GatheredDecodes:
    rows: Rows
    gather: torch.Tensor
    size: int
    mask: torch.Tensor | None
    """[size, 1, 1, padded context]: 0 where a request has a token in the window, otherwise -inf."""
    context_len: int
    """The longest in the group, from the first page of the gather on."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A step, for the layers of one group and window."""

    chunks: list[ChunkPlan]
    decodes: list[GatheredDecodes]

    @property
    def gathers(self) -> list[torch.Tensor]:
        of_chunks = [chunk.gather for chunk in self.chunks if chunk.gather is not None]
        return of_chunks + [group.gather for group in self.decodes]


class TorchAttention:
    def __init__(self, pool: KVPool, num_heads: int, layers: Sequence[LayerAttention]) -> None:
        self._pool = pool
        self._rules = layers
        self._num_heads = num_heads
        self._sources = [layer if rule.source is None else rule.source for layer, rule in enumerate(layers)]
        """For each layer: whose keys and values it reads."""
        self._heads = [pool.heads_of(source) for source in self._sources]
        # Torch indexes no 8-bit floats: their bytes.
        self._memory = pool.tensor if pool.fp8 is None else pool.tensor.view(torch.uint8)
        self._device = self._memory.device
        # For each layer the pool as rows of one page of one head, [.., page_size * head_dim], each a
        # contiguous copy. It begins at the layer's first row: one table of rows serves all layers of a group.
        self._layers = [
            self._memory.view(-1, pool.page_size * heads.dim)[pool.places[source][1] * 2 * heads.count :]
            for source, heads in zip(self._sources, self._heads, strict=True)
        ]
        # For each layer its keys and its values as [page, token, kv_head, head_dim], to write tokens into.
        self._places = [
            pool.layer(source).view(self._memory.dtype).transpose(2, 3).unbind(1) for source in self._sources
        ]
        self._workspace = torch.empty(0, dtype=self._memory.dtype, device=self._device)
        self._masks: dict[int | None, torch.Tensor] = {}
        self._keys = [
            (pool.places[source][0], rule.window) for source, rule in zip(self._sources, layers, strict=True)
        ]
        """For each layer: which plan it needs."""
        self._read_again = {rule.source for rule in layers if rule.source is not None}
        self._new: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Keys and values of this step, of layers whose others read."""
        self._plans: dict[tuple[int, int | None], _Plan] = {}
        self._pages: list[torch.Tensor] = []
        """For each group: the page of each token."""
        self._offset = torch.empty(0, dtype=torch.int64)

    def prepare(self, batch: Batch) -> None:
        page_size = self._pool.page_size
        slots = [group.slot_mapping for group in batch.groups]
        self._pages = [torch.div(mapping, page_size, rounding_mode="floor") for mapping in slots]
        self._offset = slots[0] - self._pages[0] * page_size
        for group in batch.groups:
            self._clear_new_tails(batch, group)
        self._plans = {key: self._plan(batch, *key) for key in dict.fromkeys(self._keys)}
        self._reserve_workspace()

    def forward(self, layer: int, qkv: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
        rule = self._rules[layer]
        plan = self._plans[self._keys[layer]]
        if rule.source is not None:
            q = qkv if rotation is None else rotation.turn(qkv)
            k, v = self._new[rule.source]
        elif rule.latent_rank is not None:
            q, k = qkv[:, :-1], self._store_latents(layer, qkv[:, -1:])
            v = k[..., : rule.latent_rank]
        else:
            q, k, v = self._rotated(qkv, rotation)
            if rule.causal or plan.decodes:  # no later step reads those of an encoder's prompt
                k, v = self._store(layer, k, v)
            if layer in self._read_again:
                self._new[layer] = (k, v)
        if not plan.chunks and len(plan.decodes) == 1:
            return self._attend_decodes(layer, plan.decodes[0], q)
        out = q.new_empty(*q.shape[:2], rule.latent_rank or q.shape[2])
        for chunk in plan.chunks:
            self._attend_chunk(layer, chunk, q[chunk.rows], k, v, out[chunk.rows])
        for group in plan.decodes:
            out[group.rows] = self._attend_decodes(layer, group, q[group.rows])
        return out

    def _store(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the step's keys and values into the pool; what is read from there."""
        keys, values = self._places[layer]
        fp8 = self._pool.fp8
        stored = (k, v) if fp8 is None else fp8.write(layer, k, v)
        page = self._pages[self._keys[layer][0]]
        keys[page, self._offset], values[page, self._offset] = stored
        if fp8 is None:
            return k, v
        k, v = fp8.read(layer, torch.stack(stored), k.dtype).unbind()
        return k, v

    def _store_latents(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        """Write the step's latents, `[T, 1, row]`, into the pool; what is read from there."""
        page, fp8 = self._pages[self._keys[layer][0]], self._pool.fp8
        place = latents(self._memory[:, self._pool.places[layer][1]])
        if fp8 is None:
            place[page, self._offset] = rows[:, 0]
            return rows
        stored = torch.cat(fp8.write(layer, *rows.chunk(2, dim=-1)), dim=-1)
        place[page, self._offset] = stored[:, 0]
        return self._latents_of(layer, stored, rows.dtype)

    def _latents_of(self, layer: int, stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Latents from 8 bits: each half of a row has a scale of its own, as keys and values have."""
        assert self._pool.fp8 is not None
        halves = torch.stack(stored.chunk(2, dim=-1))
        return torch.cat(self._pool.fp8.read(layer, halves, dtype).unbind(), dim=-1)

    def _rotated(
        self, qkv: torch.Tensor, rotation: Rotation | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        num_heads = self._num_heads
        kv_heads = (qkv.shape[1] - num_heads) // 2
        # Queries and keys are adjacent: one call rotates both.
        qk, v = qkv[:, :-kv_heads], qkv[:, -kv_heads:]
        if rotation is not None:
            qk = rotation.turn(qk)
        return qk[:, :num_heads], qk[:, num_heads:], v

    # ------------------------------------------------------------------------------------ planning

    def _clear_new_tails(self, batch: Batch, group: GroupTables) -> None:
        """Zero the pages that this step starts and does not fill.

        A gather reads whole pages, and masked values are still multiplied by zero: a NaN left by a failed
        request would corrupt the results of the page's next owner.
        """
        ends, tables = batch.context_lens, group.block_tables
        tail_starts = ends - ends % self._pool.page_size
        begun = tail_starts >= ends - np.diff(batch.query_indptr)
        fresh = np.flatnonzero(begun & (tail_starts < ends))
        pages = tables.pages[tables.indptr[1:][fresh] - 1]
        self._memory[torch.from_numpy(pages).to(self._device)] = 0

    def _plan(self, batch: Batch, group: int, window: int | None) -> _Plan:
        context_lens = batch.groups[group].context_lens
        tables = batch.groups[group].block_tables.table(fill=self._pool.scratch_page)
        n = batch.num_chunks
        heads = self._pool.heads[group]
        chunks = [self._plan_chunk(batch, tables, context_lens, r, heads, window) for r in range(n)]
        first_row = int(batch.query_indptr[n])
        return _Plan(chunks, self._plan_decodes(first_row, tables[n:], context_lens[n:], window, heads))

    def _plan_chunk(
        self, batch: Batch, tables: Ints, context_lens: Ints, request: int, heads: KVHeads, window: int | None
    ) -> ChunkPlan:
        rows = slice(int(batch.query_indptr[request]), int(batch.query_indptr[request + 1]))
        context_len = int(context_lens[request])
        alone = context_len == rows.stop - rows.start
        num_pages = -(-context_len // self._pool.page_size)
        gather = None if alone else self._gather_rows(tables[request : request + 1, :num_pages], heads)
        return ChunkPlan(rows, gather, context_len, seen_by(rows, batch, context_len, window))

    def _plan_decodes(
        self, first_row: int, tables: Ints, context_lens: Ints, window: int | None, heads: KVHeads
    ) -> list[GatheredDecodes]:
        """Group decodes longest first, so that padding stays small."""
        order = np.argsort(-context_lens, kind="stable")
        plans: list[GatheredDecodes] = []
        begin = 0
        while begin < len(order):
            longest = int(context_lens[order[begin]])
            num_pages = -(-longest // self._pool.page_size)
            page_bytes = 2 * heads.features * self._pool.page_size * self._memory.element_size()
            limit = max(1, GROUP_BYTES // (num_pages * page_bytes))
            similar = int(np.count_nonzero(context_lens[order[begin:]] >= MIN_FILL * longest))
            members = order[begin : begin + min(limit, similar)]
            if len(members) == len(order):
                members = np.sort(members)
            table = tables[:, :num_pages]
            plans.append(self._plan_group(first_row, members, table, context_lens, window, heads))
            begin += len(members)
        return plans

    def _plan_group(
        self,
        first_row: int,
        members: Ints,
        tables: Ints,
        context_lens: Ints,
        window: int | None,
        heads: KVHeads,
    ) -> GatheredDecodes:
        device = self._device
        lens = context_lens[members]
        longest = int(lens.max())
        mask = None
        before = lens - (longest if window is None else window)
        if lens.min() < longest or before.max() > 0:
            token = np.arange(longest)
            visible = (token < lens[:, None]) & (token >= before[:, None])
            mask = torch.zeros(visible.shape, dtype=self._pool.dtype, device=device)
            hidden = torch.from_numpy(~visible).to(device)
            mask = mask.masked_fill_(hidden, -torch.inf)[:, None, None, :]
        whole = len(members) == len(context_lens)
        rows: Rows = slice(first_row, None) if whole else torch.from_numpy(first_row + members).to(device)
        return GatheredDecodes(rows, self._gather_rows(tables[members], heads), len(members), mask, longest)

    def _gather_rows(self, tables: Ints, heads: KVHeads) -> torch.Tensor:
        """Rows of the pool that hold a group's first layer of `tables` [G, n], in the order
        [2, G, kv_head, n]. A page of latents is two rows, one after another: [G, n, 2].
        """
        page_rows = self._pool.page_bytes // (self._pool.page_size * heads.dim * self._memory.element_size())
        if self._rules[0].latent_rank is not None:
            rows = tables[:, :, None] * page_rows + np.arange(2)
        else:
            inner = np.arange(2)[:, None, None, None] * heads.count
            inner = inner + np.arange(heads.count)[None, None, :, None]
            rows = tables[None, :, None, :] * page_rows + inner
        return torch.from_numpy(rows.reshape(-1)).to(self._device)

    def _reserve_workspace(self) -> None:
        needed = max(
            (
                len(gather) * self._pool.heads[group].dim * self._pool.page_size
                for (group, _), plan in self._plans.items()
                for gather in plan.gathers
            ),
            default=0,
        )
        if needed > len(self._workspace):
            self._workspace = self._workspace.new_empty(needed)

    # ---------------------------------------------------------------------------------- per layer

    def _gather(self, layer: int, rows: torch.Tensor, requests: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, [requests, kv_head, tokens, features]: valid until the next gather."""
        pages, heads = self._layers[layer], self._heads[layer]
        out = self._workspace[: len(rows) * pages.shape[1]].view(len(rows), -1)
        kv = torch.index_select(pages, 0, rows, out=out)
        rank = self._rules[layer].latent_rank
        if rank is not None:
            keys = kv.view(requests, 1, -1, 2 * heads.dim)
            if self._pool.fp8 is not None:
                keys = self._latents_of(layer, keys, self._pool.dtype)
            return keys, keys[..., :rank]
        if self._pool.fp8 is not None:
            kv = self._pool.fp8.read(self._sources[layer], kv.view(2, -1), self._pool.dtype)
        keys, values = kv.view(2, requests, heads.count, -1, heads.dim)
        return keys, values

    def _attend_chunk(
        self,
        layer: int,
        chunk: ChunkPlan,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        rule = self._rules[layer]
        kv_heads = self._heads[layer].count
        group = self._num_heads // kv_heads
        # [kv_head, group, token, features]
        q, out = (rows.view(len(rows), kv_heads, group, -1).permute(1, 2, 0, 3) for rows in (q, out))
        if chunk.gather is None:
            keys, values = (heads[chunk.rows].transpose(0, 1) for heads in (k, v))
        else:
            keys, values = (heads[0] for heads in self._gather(layer, chunk.gather, 1))
        keys, values = (heads.unsqueeze(1).expand(-1, group, -1, -1) for heads in (keys, values))
        num_rows = q.shape[2]
        if not rule.causal:
            mask = None if rule.window is None else self._near(num_rows, rule.window)
            out[:] = attend(q, keys, values, mask, rule, (kv_heads, group, 1, 1))
            return
        for begin in range(0, num_rows, QUERY_BLOCK):
            end = min(begin + QUERY_BLOCK, num_rows)
            visible = chunk.context_len - num_rows + end
            unseen = 0 if rule.window is None else max(0, visible - (end - begin) + 1 - rule.window)
            mask = None
            if chunk.seen is not None:
                last, seen = visible, chunk.seen[begin:end]
                visible = int(seen.max())
                columns = range(unseen, visible)
                mask = mask_until(seen, columns, last, rule.window, self._pool.dtype, self._device)
            out[:, :, begin:end] = attend(
                q[:, :, begin:end],
                keys[:, :, unseen:visible],
                values[:, :, unseen:visible],
                self._causal_mask(end - begin, visible - unseen, rule.window) if mask is None else mask,
                rule,
                (kv_heads, group, 1, 1),
            )

    def _near(self, rows: int, window: int) -> torch.Tensor | None:
        """The mask [rows, rows] in which a row sees those less than `window` away; None: all of them."""
        if rows <= window:
            return None
        place = torch.arange(rows, device=self._device)
        far = (place[:, None] - place).abs() >= window
        return torch.zeros(rows, rows, dtype=self._pool.dtype, device=far.device).masked_fill_(
            far, -torch.inf
        )

    def _causal_mask(self, rows: int, columns: int, window: int | None) -> torch.Tensor:
        """The mask [rows, columns] in which the last row sees the last columns and each earlier row one less.

        Every such mask is the lower right corner of one mask per window, which is kept and grown with the
        context.
        """
        kept = self._masks.get(window)
        if kept is None or columns > kept.shape[-1]:
            size = columns if kept is None else max(columns, 2 * kept.shape[-1])
            hidden = torch.full((QUERY_BLOCK, size), -torch.inf, dtype=self._pool.dtype, device=self._device)
            kept = hidden.triu(size - QUERY_BLOCK + 1)
            if window is not None:
                kept += hidden.tril_(size - QUERY_BLOCK - window)
            self._masks[window] = kept
        mask = kept[QUERY_BLOCK - rows :, kept.shape[-1] - columns :]
        # GPU kernels need aligned rows, and a corner may start anywhere.
        return mask.contiguous() if mask.is_cuda else mask

    def _attend_decodes(self, layer: int, group: GatheredDecodes, q: torch.Tensor) -> torch.Tensor:
        rule, kv_heads = self._rules[layer], self._heads[layer].count
        gathered = self._gather(layer, group.gather, group.size)
        keys, values = (heads[:, :, : group.context_len] for heads in gathered)
        # [request, kv_head, query heads of it, features]: the heads of a group are the rows of one query.
        q = q.reshape(group.size, kv_heads, -1, q.shape[2])
        heads = (1, kv_heads, q.shape[2], 1)
        return attend(q, keys, values, group.mask, rule, heads).flatten(1, 2)
