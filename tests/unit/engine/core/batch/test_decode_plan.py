"""The array from which a GPU's thread blocks read their work: interpreted here instead of by the kernel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.batch.block_tables import BlockTables
from engine.core.batch.decode_plan import Decodes, PlanLayout
from engine.mixers.attention.decode_planner import DecodePlanner

HEAD_DIM = 4
SCRATCH = 0

Floats = npt.NDArray[np.float64]


def planner(page_size: int) -> DecodePlanner:
    """A small GPU: eight parts at once."""
    return DecodePlanner(multiprocessors=1, num_kv_heads=1, page_size=page_size)


def interpret(
    ints: npt.NDArray[np.int32], layout: PlanLayout, q: Floats, keys: Floats, values: Floats
) -> Floats:
    """What the kernel does with one head: `keys` and `values` are [page, token, feature]."""
    page_size, fields = keys.shape[1], layout.offsets
    part_tokens = int(ints[fields.part_tokens])
    results: dict[int, tuple[Floats, float]] = {}
    for block in range(layout.parts):
        if ints[fields.owners + block] < 0:
            continue
        owner, index = int(ints[fields.owners + block]), int(ints[fields.indices + block])
        first, last = (int(ints[fields.page_indptr + owner + i]) for i in (0, 1))
        context = (last - first - 1) * page_size + int(ints[fields.last_page_lens + owner])
        tokens = np.arange(index * part_tokens, min((index + 1) * part_tokens, context))
        assert len(tokens), "a thread block with nothing to read"
        pages = ints[fields.pages + first + tokens // page_size]
        scores = np.exp(keys[pages, tokens % page_size] @ q[owner])
        place = int(ints[fields.first_parts + owner]) + index
        assert place not in results, "two parts would write the same result"
        results[place] = (scores @ values[pages, tokens % page_size], scores.sum())
    rows = []
    for row in range(layout.requests):
        begin, end = (int(ints[fields.first_parts + row + i]) for i in (0, 1))
        parts = [results.pop(place) for place in range(begin, end)]
        rows.append(sum(weighted for weighted, _ in parts) / sum(total for _, total in parts))
    assert not results
    return np.array(rows)


@settings(max_examples=60, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 40) | st.integers(600, 900), min_size=1, max_size=9),
    page_size=st.sampled_from([1, 4, 16]),
    missing=st.integers(0, 3),
    spare=st.integers(0, 5),
)
def test_every_request_gets_its_attention(
    contexts: list[int], page_size: int, missing: int, spare: int
) -> None:
    """The batch is padded for a graph, in a grid with room to spare."""
    rng = np.random.default_rng(0)
    used = [-(-context // page_size) for context in contexts]
    pages = 1 + rng.permutation(sum(used))
    lists = [part.tolist() for part in np.split(pages, np.cumsum(used)[:-1])]
    keys, values = rng.normal(size=(2, len(pages) + 1, page_size, HEAD_DIM))
    q = rng.normal(size=(len(contexts) + missing, HEAD_DIM))
    decodes = Decodes(np.array(contexts), BlockTables.of(lists)).padded(missing, SCRATCH)
    plan = planner(page_size).plan(decodes)
    layout = PlanLayout(len(q), len(plan.owners) + spare)

    packed = np.full(layout.ints(plan), 99, dtype=np.int32)
    layout.pack(plan, packed)
    out = interpret(packed, layout, q, keys, values)

    for row, (table, context) in enumerate(zip(lists, contexts, strict=True)):
        own_keys, own_values = (kind[table].reshape(-1, HEAD_DIM)[:context] for kind in (keys, values))
        scores = np.exp(own_keys @ q[row])
        np.testing.assert_allclose(out[row], scores @ own_values / scores.sum(), rtol=1e-9)


def test_a_plan_larger_than_its_grid_is_refused() -> None:
    decodes = Decodes(np.array([900]), BlockTables.of([list(range(57))]))
    plan = planner(16).plan(decodes)
    with pytest.raises(ValueError, match="do not fit a grid of 1"):
        PlanLayout(1, 1).pack(plan, np.empty(99, dtype=np.int32))
