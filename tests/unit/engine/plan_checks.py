"""Invariants of every plan. Where one does not hold, a real runner computes a wrong token or fails."""

from __future__ import annotations

from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import PENDING
from engine.core.request_state import NO_SLOT, RequestState


def check_plan(plan: StepPlan) -> None:
    """Raises AssertionError."""
    chunks = plan.chunks
    slots = [chunk.slot for chunk in chunks]
    assert len({chunk.request.id for chunk in chunks}) == len(chunks), "two chunks of one request"
    assert len(set(slots)) == len(slots), "two requests in one slot"
    lengths = [chunk.length for chunk in plan.rows()]
    assert sorted(lengths, key=lambda n: n == 1) == lengths, "single tokens come last"
    computed = {chunk.request.id for chunk in chunks}
    assert not {request.id for request in plan.preempted} & computed, "a chunk of a preempted request"
    assert not set(plan.preempted) & {*plan.started, *plan.resumed}, "preempted and admitted in one plan"
    for chunk in chunks:
        _check_chunk(chunk)
    _check_states(chunks)


def _check_chunk(chunk: Chunk) -> None:
    request, length = chunk.request, chunk.length
    assert chunk.slot == request.slot >= 0
    assert chunk.admission == request.admissions
    assert 0 <= chunk.start < chunk.end <= request.num_tokens
    if chunk.draft:
        assert chunk.kind is ChunkKind.VERIFY
        assert length == 1 + len(chunk.draft)
    else:
        assert chunk.kind is (ChunkKind.PREFILL if length > 1 else ChunkKind.DECODE)
    first = chunk.start + 1 if chunk.draft else chunk.end
    tokens = request.tokens(chunk.start, first)
    assert PENDING not in tokens[:-1], "a token before the last one is not known"
    sampled = None if chunk.output_index is None else len(request.prompt) + chunk.output_index
    assert sampled in (None, first), "the sampled token goes to another position"
    if sampled is not None:
        assert request.token(sampled) == PENDING
    elif request.read is not None:
        ends = chunk.end == request.num_tokens
        rows = chunk.length if request.read.needs_all_rows else int(ends)
        assert chunk.num_scored == rows, "another row than is read"
    else:
        assert chunk.end < request.num_known, "the last known token gives the next one"
    assert len(chunk.scored) <= length


def _check_states(chunks: list[Chunk]) -> None:
    """Each slot for states is written by one chunk, and read by no other then."""
    written: dict[int, int] = {}
    read: dict[int, int] = {}
    for chunk in chunks:
        state, id = chunk.request.state, chunk.request.id
        if state is None:
            continue
        for slot in _written_by(chunk, state):
            assert written.setdefault(slot, id) == id, "two requests write a slot for states"
        if (source := state.read_by(chunk.start)) != NO_SLOT:
            read[source] = id
    assert all(written.get(slot, id) == id for slot, id in read.items()), "a slot is read and written"


def _written_by(chunk: Chunk, state: RequestState) -> list[int]:
    save = state.saved_by(chunk.start, chunk.end)
    if save is None:
        return [state.slot]
    assert chunk.kind is ChunkKind.PREFILL, "kernels write no checkpoints of single rows"
    assert save.slot != state.slot
    return [state.slot, save.slot]
