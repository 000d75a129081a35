"""Latent attention to the tokens that an indexer chooses, in plain torch (DeepSeek-V3.2, 2025).

A chunk attends to its whole context under a mask, a decode to the chosen rows, which are gathered. Up to as
many tokens as are chosen, all of them are attended to, and none is scored.

Of equal scores, earlier tokens are chosen: a product that is negative for all heads scores exactly 0, so a
context may have many of these, and the choice must not depend on chunks.
"""

from __future__ import annotations

from typing import Final

import torch

from engine.core.batch.batch import Batch
from engine.mixers.attention.dense_attention import attend
from engine.mixers.attention.torch_backend import QUERY_BLOCK, ChunkPlan, GatheredDecodes, TorchAttention
from engine.modeling.layers.indexer import IndexRows

_SCORE_BYTES: Final = 64 << 20
"""Products of the indexer's queries and keys that are in memory at a time."""


class SparseLatents(TorchAttention):
    """A `SparseAttention`: of its layers, all of which have latents, `attend_to_chosen` is called only."""

    def prepare(self, batch: Batch) -> None:
        super().prepare(batch)
        self._chosen: dict[tuple[int, int], torch.Tensor] = {}
        """Tokens that the last indexer has chosen, by the number of a chunk and its first row, or of a group
        of decodes and -1."""

    def attend_to_chosen(self, layer: int, rows: torch.Tensor, index: IndexRows | None) -> torch.Tensor:
        rule, plan = self._rules[layer], self._plans[self._keys[layer]]
        assert rule.latent_rank is not None
        queries, width = rows[:, :-1], 2 * self._heads[layer].dim
        keys = rows.new_zeros(len(rows), width - rows.shape[2]) if index is None else index.keys
        stored = self._store_latents(layer, torch.cat((rows[:, -1], keys), dim=1)[:, None])[:, 0]
        out = rows.new_empty(*queries.shape[:2], rule.latent_rank)
        for number, chunk in enumerate(plan.chunks):
            context = stored[chunk.rows]
            if chunk.gather is not None:
                context = self._gather(layer, chunk.gather, 1)[0][0, 0]
            of_rows = None if index is None else IndexRows(*(values[chunk.rows] for values in index))
            self._chunk(layer, number, chunk, queries[chunk.rows], context, of_rows, out[chunk.rows])
        for number, group in enumerate(plan.decodes):
            context = self._gather(layer, group.gather, group.size)[0][:, 0, : group.context_len]
            of_rows = None if index is None else IndexRows(*(values[group.rows] for values in index))
            out[group.rows] = self._decodes(layer, number, group, queries[group.rows], context, of_rows)
        return out

    def _chunk(
        self,
        layer: int,
        number: int,
        chunk: ChunkPlan,
        queries: torch.Tensor,
        context: torch.Tensor,
        index: IndexRows | None,
        out: torch.Tensor,
    ) -> None:
        """`queries` [rows, H, row] over `context` [tokens, stored]; into `out` [rows, H, rank]."""
        rule, (num_rows, num_heads, width) = self._rules[layer], queries.shape
        assert rule.chosen is not None
        for begin in range(0, num_rows, QUERY_BLOCK):
            block = slice(begin, min(begin + QUERY_BLOCK, num_rows))
            visible = chunk.context_len - num_rows + block.stop
            mask = self._causal_mask(block.stop - begin, visible, None)
            if visible > rule.chosen:
                if index is not None:
                    of_block = IndexRows(*(values[block] for values in index))
                    self._chosen[number, begin] = choose(
                        of_block, context[:visible, width:], mask, rule.chosen
                    )
                left_out = torch.ones_like(mask, dtype=torch.bool)
                left_out.scatter_(1, self._chosen[number, begin], False)
                mask = mask.masked_fill(left_out, -torch.inf)
            keys = context[:visible, :width].expand(1, num_heads, -1, -1)
            q, values = queries[block].transpose(0, 1)[None], keys[..., : rule.latent_rank]
            out[block] = attend(q, keys, values, mask, rule, (1, num_heads, 1, 1))[0].transpose(0, 1)

    def _decodes(
        self,
        layer: int,
        number: int,
        group: GatheredDecodes,
        queries: torch.Tensor,
        context: torch.Tensor,
        index: IndexRows | None,
    ) -> torch.Tensor:
        """`queries` [G, H, row], each over its own `context` [G, tokens, stored]; [G, H, rank]."""
        rule, (_, num_heads, width) = self._rules[layer], queries.shape
        assert rule.chosen is not None
        mask = group.mask
        if group.context_len > rule.chosen:
            unmasked = context.new_zeros(context.shape[:2], dtype=self._pool.dtype)
            of_rows = unmasked if mask is None else mask[:, 0, 0]
            if index is not None:
                self._chosen[number, -1] = choose(index, context[..., width:], of_rows, rule.chosen)
            chosen = self._chosen[number, -1]
            context = context.gather(1, chosen[..., None].expand(-1, -1, context.shape[2]))
            mask = of_rows.gather(1, chosen)[:, None, None]
        keys = context[:, None, :, :width]
        heads = (1, 1, num_heads, 1)
        return attend(queries[:, None], keys, keys[..., : rule.latent_rank], mask, rule, heads)[:, 0]


def choose(index: IndexRows, keys: torch.Tensor, mask: torch.Tensor, most: int) -> torch.Tensor:
    """The `most` tokens of each row with the best scores, [rows, most], of `keys` [.., tokens, dim].

    `mask` [rows, tokens]: -inf where a row does not see a token. Such a token is chosen if there is no other.
    """
    queries, weights, _ = index
    at_once = max(1, _SCORE_BYTES // (4 * queries.shape[1] * keys.shape[-2]))
    parts = [slice(begin, begin + at_once) for begin in range(0, len(queries), at_once)]
    transposed = keys.float().transpose(-1, -2)
    scores = [
        _scores(queries[part], weights[part], transposed if keys.dim() == 2 else transposed[part])
        for part in parts
    ]
    seen = torch.cat(scores) + mask
    return seen.sort(dim=1, descending=True, stable=True).indices[:, :most]


def _scores(queries: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """[rows, tokens] of `keys` [.., dim, tokens]; 0 without a sign, by which some devices would sort."""
    products = (queries.float() @ keys).relu_()
    return (weights[:, None] @ products).squeeze(1) + 0.0
