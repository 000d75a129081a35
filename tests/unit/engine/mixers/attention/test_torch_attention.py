"""The torch backend against attention written out over whole sequences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.kv_groups import full_group
from engine.core.batch.batch import BatchBuilder
from engine.core.batch.step_inputs import StepWriter
from engine.core.plan import Chunk, StepPlan
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.kv.cache.pool import KVPool
from engine.mixers.attention import TorchAttention, torch_backend
from engine.modeling.layers.layer_attention import LayerAttention
from tests.unit.engine.dense_attention import attend

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 8
MAX_LEN = 96


@dataclass
class Sequence:
    """A request, and every key and value it ever had: [layer, token, kv_head, head_dim]."""

    request: Request
    keys: torch.Tensor
    values: torch.Tensor


PLAIN = LayerAttention(scale=HEAD_DIM**-0.5)
RULES = [
    PLAIN,
    LayerAttention(scale=HEAD_DIM**-0.5, window=7),
    LayerAttention(scale=1.5, window=16, soft_cap=2.0),
    LayerAttention(scale=HEAD_DIM**-0.5, window=1, sinks=torch.tensor([0.5, -2.0, 4.0, 1.0, 0.0, 1e4])),
    LayerAttention(scale=0.25, soft_cap=5.0, sinks=torch.tensor([0.5, -2.0, 4.0, 1.0, 0.0, 90.0])),
]
"""For up to 6 query heads."""
Rules: TypeAlias = tuple[LayerAttention, LayerAttention]


class World:
    def __init__(
        self,
        page_size: int,
        group: int,
        num_requests: int,
        rules: tuple[LayerAttention, ...] = (PLAIN, PLAIN),
    ) -> None:
        pages_each = -(-MAX_LEN // page_size)
        self.pool = KVPool(
            num_pages=pages_each * num_requests,
            groups=full_group(LAYERS),
            num_kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            page_size=page_size,
            dtype=torch.float32,
            device="cpu",
        )
        self.pool.tensor[:-1] = torch.nan  # whatever is read without having been written shows
        self.heads = KV_HEADS * group
        self.rules = [
            rule if rule.sinks is None else replace(rule, sinks=rule.sinks[: self.heads]) for rule in rules
        ]
        self.attention = TorchAttention(self.pool, self.heads, self.rules)
        self.steps = StepWriter(num_requests)
        self.batches = BatchBuilder(
            page_size=page_size,
            max_requests=num_requests,
            max_model_len=MAX_LEN,
            scratch_page=self.pool.scratch_page,
            device=torch.device("cpu"),
        )
        shuffled = np.random.default_rng(0).permutation(self.pool.num_pages).tolist()
        self.sequences = [
            Sequence(
                Request(id=i, prompt=[0] * MAX_LEN, sampling=SamplingParams(max_tokens=1), slot=i),
                *torch.randn(2, LAYERS, MAX_LEN, KV_HEADS, HEAD_DIM),
            )
            for i in range(num_requests)
        ]
        for i, sequence in enumerate(self.sequences):
            sequence.request.pages = shuffled[i * pages_each : (i + 1) * pages_each]

    def step(self, lengths: list[int]) -> None:
        """Compute the next tokens of each sequence in one batch and compare every row of every layer."""
        pairs = [(s, n) for s, n in zip(self.sequences, lengths, strict=True) if n > 0]
        pairs.sort(key=lambda pair: pair[1] == 1)
        chunks = [Chunk(s.request, s.request.slot, s.request.num_computed, n, None) for s, n in pairs]
        batch = self.batches.build(self.steps.write(StepPlan(chunks)))
        self.attention.prepare(batch)
        for layer in range(LAYERS):
            q = torch.randn(batch.input_ids.shape[0], self.heads, HEAD_DIM)
            k = torch.cat([s.keys[layer, c.start : c.end] for (s, _), c in zip(pairs, chunks, strict=True)])
            v = torch.cat([s.values[layer, c.start : c.end] for (s, _), c in zip(pairs, chunks, strict=True)])
            expected = [
                attend(rows, s.keys[layer, : c.end], s.values[layer, : c.end], self.rules[layer])
                for (s, _), c, rows in zip(pairs, chunks, q.split([n for _, n in pairs]), strict=True)
            ]
            torch.testing.assert_close(
                self.attention.forward(layer, torch.cat((q, k, v), dim=1), None),
                torch.cat(expected),
                atol=1e-5,
                rtol=1e-5,
            )
        for chunk in chunks:
            chunk.request.num_computed = chunk.end


@settings(max_examples=40, deadline=None)
@given(
    page_size=st.sampled_from([1, 4, 16]),
    group=st.sampled_from([1, 3]),
    steps=st.lists(
        st.lists(st.sampled_from([0, 1, 1, 1, 2, 5, 16, 20]), min_size=4, max_size=4).filter(any),
        min_size=1,
        max_size=4,
    ),
    rules=st.tuples(st.sampled_from(RULES), st.sampled_from(RULES)),
)
def test_any_batch_of_chunks_and_decodes_attends_as_written_out(
    page_size: int, group: int, steps: list[list[int]], rules: Rules
) -> None:
    world = World(page_size, group, num_requests=4, rules=rules)
    for lengths in steps:
        world.step(lengths)


def test_long_chunks_are_cut_into_blocks_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "QUERY_BLOCK", 8)
    world = World(page_size=4, group=2, num_requests=2, rules=(PLAIN, RULES[1]))
    for lengths in ([30, 3], [31, 17], [1, 9], [19, 1]):
        world.step(lengths)


@pytest.mark.parametrize("group_bytes", [1, 4096, 1 << 20])
def test_decodes_of_very_different_contexts_share_a_step(
    monkeypatch: pytest.MonkeyPatch, group_bytes: int
) -> None:
    monkeypatch.setattr(torch_backend, "GROUP_BYTES", group_bytes)
    world = World(page_size=4, group=2, num_requests=5, rules=(PLAIN, RULES[2]))
    world.step([3, 90, 40, 85, 0])
    for _ in range(4):
        world.step([1, 1, 1, 1, 1])
