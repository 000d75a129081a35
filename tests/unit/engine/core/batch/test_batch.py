"""The arrays of a step, and what it costs to build them."""

from __future__ import annotations

import time
from dataclasses import fields

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.core.batch.batch import Batch, BatchBuilder
from engine.core.batch.step_inputs import StepInputs, StepWriter
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING, Request
from engine.core.sampling_params import SamplingParams

PAGE_SIZE = 4
SCRATCH = 999


class Builder:
    """What a runner does with a plan."""

    def __init__(self, max_requests: int = 8, max_model_len: int = 64) -> None:
        self._writer = StepWriter(max_requests)
        self._batches = BatchBuilder(
            page_size=PAGE_SIZE,
            max_requests=max_requests,
            max_model_len=max_model_len,
            scratch_page=SCRATCH,
            device=torch.device("cpu"),
        )

    def build(self, plan: StepPlan, into: torch.Tensor | None = None) -> Batch:
        return self._batches.build(self._writer.write(plan), into)


def make_request(slot: int, prompt: int, output: tuple[int, ...] = ()) -> Request:
    request = Request(
        slot, [100 * slot + i for i in range(prompt)], SamplingParams(max_tokens=9), list(output)
    )
    request.slot = slot
    request.pages = [20 * slot + i for i in range(-(-request.num_tokens // PAGE_SIZE) + 1)]
    return request


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=6))
def test_every_token_of_every_chunk_is_in_its_place(spans: list[tuple[int, int]]) -> None:
    spans.sort(key=lambda span: span[1] == 1)
    chunks = [
        Chunk(make_request(slot, start + length), slot, start, length, 0 if slot % 2 else None)
        for slot, (start, length) in enumerate(spans)
    ]
    batch = Builder().build(StepPlan(chunks))
    row = 0
    for r, chunk in enumerate(chunks):
        request = chunk.request
        assert batch.query_indptr[r] == row
        for position in range(chunk.start, chunk.end):
            assert batch.input_ids[row] == request.prompt[position]
            assert batch.positions[row] == position
            page = request.pages[position // PAGE_SIZE]
            assert batch.groups[0].slot_mapping[row] == page * PAGE_SIZE + position % PAGE_SIZE
            row += 1
        assert batch.context_lens[r] == chunk.end
        used = -(-chunk.end // PAGE_SIZE)
        assert batch.groups[0].block_tables.part(r, r + 1).pages.tolist() == request.pages[:used]
    assert batch.query_indptr[-1] == row == len(batch.input_ids)
    assert batch.num_chunks == sum(length > 1 for _, length in spans)
    sampling = [r for r, chunk in enumerate(chunks) if chunk.samples]
    assert batch.sample_rows.tolist() == [batch.query_indptr[r + 1] - 1 for r in sampling]
    assert batch.sample_slots.tolist() == sampling


def test_a_pending_token_is_marked_and_reads_as_a_valid_id() -> None:
    decoding = make_request(1, 5, output=(7, PENDING))
    known = make_request(2, 5, output=(7, 8))
    batch = Builder().build(StepPlan([Chunk(decoding, 1, 6, 1, 2), Chunk(known, 2, 6, 1, 2)]))
    assert batch.input_ids.tolist() == [0, 8]
    assert batch.pending_rows.tolist() == [0]
    assert batch.pending_slots.tolist() == [1]


def test_a_chunk_that_stops_before_the_pending_token_does_not_wait_for_it() -> None:
    request = make_request(1, 5, output=(7, PENDING))
    batch = Builder().build(StepPlan([Chunk(request, request.slot, 0, 6, None)]))
    assert batch.pending_rows.tolist() == []


def test_a_chunk_may_span_prompt_and_output() -> None:
    request = make_request(0, 3, output=(50, 51, 52))
    batch = Builder().build(StepPlan([Chunk(request, request.slot, 1, 5, 3)]))
    assert batch.input_ids.tolist() == [1, 2, 50, 51, 52]


def test_block_tables_follow_pages_that_grow_shrink_or_change() -> None:
    builder = Builder()
    request = make_request(3, 20)

    def table() -> list[int]:
        batch: Batch = builder.build(StepPlan([Chunk(request, request.slot, 0, 20, None)]))
        return list(batch.groups[0].block_tables.pages)

    for pages in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5], [9, 8, 7, 4, 5]):
        request.pages = pages
        assert table() == pages[:5]
    request.pages = [1, 2, 3]
    assert table() == [1, 2, 3, SCRATCH, SCRATCH]


def test_rows_go_where_a_graph_reads_them_with_padding_behind() -> None:
    plan = StepPlan([Chunk(make_request(slot, 9), slot, 8, 1, 0) for slot in (1, 2, 3)])
    into = torch.full((3, 6), -7)
    builder = Builder()
    for built in (builder.build(plan, into), builder.build(plan, into)):
        assert built.rows.data_ptr() == into.data_ptr()
        assert torch.equal(built.rows, Builder().build(plan).rows)
        assert torch.equal(built.groups[0].slot_mapping, built.rows[2])
        assert into[:, 3:].tolist() == [[0] * 3, [0] * 3, [SCRATCH * PAGE_SIZE] * 3]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=3), max_size=6)
)
def test_what_is_kept_from_step_to_step_changes_no_batch(steps: list[list[tuple[int, int]]]) -> None:
    """`steps`: of each request, how many tokens are drafted, and whether its answer has begun."""
    kept = Builder()
    for decodes in steps:
        chunks = []
        for slot, (drafted, output) in enumerate(sorted(decodes, key=lambda decode: decode[0] == 0)):
            request = make_request(slot, 5, output=(7, 7, PENDING)[: 1 + 2 * output])
            kind = ChunkKind.VERIFY if drafted else ChunkKind.DECODE
            draft, place = (8,) * drafted, len(request.output)
            chunks.append(Chunk(request, slot, 4 + place, 1 + drafted, place, kind=kind, draft=draft))
        plan = StepPlan(chunks, num_drafted=sum(drafted for drafted, _ in decodes))
        one, other = kept.build(plan), Builder().build(plan)
        for name in ("rows", "sample_rows", "sample_slots", "pending_rows", "pending_slots"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        for name in ("query_indptr", "context_lens"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name
        tables, others = one.groups[0].block_tables, other.groups[0].block_tables
        assert np.array_equal(tables.pages, others.pages)
        assert np.array_equal(tables.indptr, others.indptr)


def test_a_step_survives_its_journey_to_another_rank() -> None:
    reading, decoding = make_request(1, 9), make_request(2, 5, output=(PENDING,))
    chunks = [Chunk(reading, 1, 2, 7, None), Chunk(decoding, 2, 5, 1, 1)]
    here = StepWriter(8).write(StepPlan(chunks))
    header, payload = here.header(), here.payload()
    assert len(payload) == StepInputs.payload_ints(header)
    there = StepInputs.unpack(header, payload)
    for field in fields(StepInputs):
        assert getattr(there, field.name).tolist() == getattr(here, field.name).tolist()


def test_a_decode_step_with_a_hundred_times_the_context_costs_less_than_ten_times_as_much_to_build() -> None:
    """256 requests, in CPU seconds of this thread; three times as much in fact."""

    def cost(num_tokens: int) -> float:
        builder = Builder(max_requests=256, max_model_len=4096)
        plan = StepPlan([])
        for i in range(256):
            request = Request(i, list(range(num_tokens)), SamplingParams(max_tokens=64), [1], slot=i)
            request.pages = (np.arange(num_tokens // 4 + 1) + 1000 * i).tolist()
            plan.chunks.append(Chunk(request, i, num_tokens, 1, 1))
        builder.build(plan)
        durations = []
        for _ in range(30):
            began = time.thread_time()
            builder.build(plan)
            durations.append(time.thread_time() - began)
        return min(durations)

    assert cost(4000) < 10 * cost(40)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 20), st.integers(2, 9)), max_size=2),
)
def test_drafts_are_written_as_one_decode_for_each_token(
    decodes: list[tuple[int, int]], prompts: list[tuple[int, int]]
) -> None:
    decodes.sort(key=lambda decode: decode[1] == 0)
    chunks, kinds = [], (ChunkKind.DECODE, ChunkKind.VERIFY)
    for slot, (start, length) in enumerate(prompts):
        chunks.append(Chunk(make_request(slot, start + length + 4), slot, start, length, None))
    for slot, (start, drafted) in enumerate(decodes, len(prompts)):
        draft = tuple(range(900, 900 + drafted))
        request = make_request(slot, start + 4)
        kind = kinds[drafted > 0]
        chunks.append(Chunk(request, slot, start, 1 + drafted, 0, kind=kind, draft=draft))
    plan = StepPlan(chunks, num_drafted=sum(drafted for _, drafted in decodes))
    rows, written = plan.rows(), StepWriter(8).write(plan)
    assert written.slots.tolist() == [row.slot for row in rows]
    assert written.starts.tolist() == [row.start for row in rows]
    assert written.lengths.tolist() == [row.length for row in rows]
    assert written.samples.tolist() == [int(row.samples) for row in rows]
    expected = [list(row.request.tokens(row.start, row.end)) for row in rows]
    for tokens, row in zip(expected, rows, strict=True):
        tokens[:] = [row.draft[-1]] if row.draft else tokens
    assert written.input_ids.tolist() == [token for tokens in expected for token in tokens]
    whole = StepWriter(8).write(plan, by_rows=False)
    assert whole.lengths.tolist() == [chunk.length for chunk in chunks]
    assert whole.samples.tolist() == [chunk.samples * (1 + len(chunk.draft)) for chunk in chunks]
    assert whole.input_ids.tolist() == written.input_ids.tolist()
