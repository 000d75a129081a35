"""What the memory probe runs is as large as any step that the scheduler plans."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from engine.config import Batching, EngineConfig
from engine.core.batch.batch import scratch_batch
from engine.core.largest_step import TokenSpan, largest_step
from engine.errors import UnservableRequest
from engine.executor.profile_run import ProfileRun
from engine.executor.runner import ModelRunner
from engine.sampling.sampler import Sampler
from tests.unit.engine.engines import make_engine, make_request
from tests.unit.tiny import VOCAB, make_config, save_tiny_llama

CPU = torch.device("cpu")


def config(**changes: Any) -> EngineConfig:
    return make_config(Path("none"), **({"page_size": 4} | changes))


@settings(max_examples=60, deadline=None)
@given(
    budget=st.sampled_from([None, 4, 16, 64, 200]),
    chunked=st.booleans(),
    threshold=st.sampled_from([None, 8]),
    max_prefill=st.sampled_from([None, 40]),
    batching=st.sampled_from(Batching),
    running=st.integers(1, 12),
    longest=st.sampled_from([24, 60, 128]),
    lengths=st.lists(st.integers(1, 127), min_size=1, max_size=24),
    arrivals=st.lists(st.integers(0, 6), min_size=24, max_size=24),
)
def test_no_step_has_more_tokens_or_samples_more_rows(
    budget: int | None,
    chunked: bool,
    threshold: int | None,
    max_prefill: int | None,
    batching: Batching,
    running: int,
    longest: int,
    lengths: list[int],
    arrivals: list[int],
) -> None:
    changes: dict[str, Any] = {
        "chunk_budget": budget,
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": threshold,
        "max_prefill_tokens": max_prefill,
        "batching": batching,
        "max_running_requests": running,
        "max_model_len": longest,
    }
    bound = sum(span.length for span in largest_step(config(**changes)))
    engine = make_engine(num_pages=600, max_waiting_requests=64, **changes)
    coming = sorted(zip(arrivals, lengths, strict=False))
    largest = step = 0
    while engine.has_work or coming:
        while coming and coming[0][0] <= step:
            _, length = coming.pop(0)
            prompt = [(length + i) % 90 for i in range(min(length, longest - 1))]
            with suppress(UnservableRequest):  # too long for a step, with chunking off
                engine.submit(make_request(1000 + len(coming), prompt, max_tokens=9, ignore_eos=True))
        largest = max(largest, engine.step().num_tokens)
        step += 1
    assert largest <= bound


def lengths_of(**changes: Any) -> list[int]:
    return [span.length for span in largest_step(config(**changes))]


def test_a_budget_is_filled_by_several_prompts_where_one_is_too_short() -> None:
    lengths = lengths_of(chunk_budget=300, max_model_len=128, max_running_requests=5)
    assert lengths == [128, 128, 40, 1, 1, 1, 1]


def test_without_chunks_a_whole_prompt_runs_beside_all_decodes() -> None:
    assert lengths_of(chunk_budget=None, max_model_len=128, max_running_requests=4) == [128, 1, 1, 1]


def test_a_budget_smaller_than_the_decodes_leaves_a_page_to_prompts() -> None:
    assert lengths_of(chunk_budget=4, max_running_requests=8) == [4, *[1] * 7]


def test_prompts_are_probed_at_the_end_of_the_longest_context() -> None:
    first, *decodes = largest_step(config(chunk_budget=64, max_model_len=128, max_running_requests=5))
    assert first == TokenSpan(68, 60)
    assert set(decodes) == {TokenSpan(0, 1)}


@pytest.mark.parametrize(
    "spans", [[TokenSpan(0, 1)], [TokenSpan(3, 6), TokenSpan(0, 1)], [TokenSpan(0, 9), TokenSpan(7, 2)]]
)
def test_a_warm_up_touches_the_scratch_page_alone(spans: list[TokenSpan]) -> None:
    batch = scratch_batch(spans, scratch_page=5, page_size=4, device=CPU)
    (group,) = batch.groups
    assert set((group.slot_mapping // 4).tolist()) == {5}
    assert set(group.block_tables.pages.tolist()) == {5}
    assert group.block_tables.counts.tolist() == [-(-(start + length) // 4) for start, length in spans]
    assert batch.num_chunks == sum(length > 1 for _, length in spans)
    assert batch.context_lens.tolist() == [start + length for start, length in spans]
    assert batch.query_indptr.tolist()[-1] == len(batch.input_ids) == len(batch.positions)


def test_the_largest_step_can_be_computed_on_a_pool_without_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_llama(tmp_path)
    settings = make_config(tmp_path, chunk_budget=300, max_model_len=128, max_running_requests=5)
    runner = ModelRunner(settings)
    rows: list[torch.Size] = []
    monkeypatch.setattr(Sampler, "profile_run", lambda _, logits: rows.append(logits.shape))
    pool = runner._pool(settings, 0)
    batch = scratch_batch(largest_step(settings), pool.scratch_page, settings.page_size, CPU)
    ProfileRun(runner.model, runner._sampler).compute(batch, runner._attention_over(pool, settings), rows=5)
    assert len(batch.input_ids) == 300
    assert rows == [(5, VOCAB)]
