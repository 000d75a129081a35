from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine.sched.chunk_size.token_budget import PrefillLimits, Progress, StepRoom, without_long_chunks

PAGE = 16


def share(prompts: Sequence[Progress], budget: int, *, sharers: int = 1, **limits: Any) -> list[int]:
    room = StepRoom(PrefillLimits(**{"largest": budget, "unit": PAGE} | limits), budget, sharers)
    return [room.grant(prompt) for prompt in prompts]


def test_one_prompt_gets_the_whole_step() -> None:
    assert share([Progress(0, 100_000)], 512) == [512]


def test_a_step_goes_to_prompts_in_their_order_and_what_is_left_to_the_next() -> None:
    prompts = [Progress(0, 700), Progress(0, 5000), Progress(0, 9000)]
    assert share(prompts, 2048) == [700, 1344, 0]


def test_a_longest_chunk_leaves_room_for_others() -> None:
    assert share([Progress(0, 5000), Progress(0, 300)], 1024, longest_chunk=256) == [256, 256]


def test_fair_shares_are_equal_and_what_one_leaves_goes_to_the_next() -> None:
    long, short = Progress(0, 5000), Progress(0, 100)
    assert share([long, long, long], 960, sharers=3) == [320, 320, 320]
    assert share([short, long, long], 960, sharers=3) == [100, 416, 432]


def test_prompts_in_progress_are_limited_and_those_that_end_are_not() -> None:
    short, long = Progress(0, 100), Progress(0, 5000)
    assert share([long, long], 2048, longest_chunk=512, max_partial=1) == [512, 0]
    assert share([short, long, short, long], 2048, longest_chunk=512, max_partial=1) == [100, 512, 100, 0]


def test_shorter_prompts_pass_long_ones_beyond_their_number() -> None:
    long, middling = Progress(0, 5000), Progress(0, 500)
    limits = {"longest_chunk": 512, "max_long_partial": 1}
    assert share([long, long, middling], 2048, **limits) == [512, 0, 500]


def test_without_chunking_a_prompt_goes_whole_or_waits_and_so_do_those_behind_it() -> None:
    prompts = [Progress(0, 600), Progress(0, 500), Progress(0, 100)]
    assert share(prompts, 1000, chunked=False) == [600, 0, 0]
    assert share(prompts[::-1], 1000, chunked=False) == [100, 500, 0]


def test_without_chunking_a_resumed_request_longer_than_any_step_is_still_computed() -> None:
    assert share([Progress(0, 5000)], 1000, chunked=False) == [992]


def test_without_a_budget_the_first_prompt_of_a_step_may_exceed_max_prefill_tokens() -> None:
    limits = {"chunked": False, "first_may_exceed": True}
    assert share([Progress(0, 5000), Progress(0, 10)], 1000, **limits) == [5000, 0]
    assert share([Progress(0, 400), Progress(0, 600)], 1000, **limits) == [400, 0], "as SGLang compares"
    assert share([Progress(0, 400), Progress(0, 599)], 1000, **limits) == [400, 599]


def test_a_prompt_that_ends_does_not_wait_for_a_part_of_a_long_one() -> None:
    long, short, middling = Progress(1024, 20_000), Progress(0, 300), Progress(0, 900)
    assert without_long_chunks([short, long], [300, 208], 512) == [300, 0]
    assert without_long_chunks([long, short], [208, 300], 512) == [208, 300], "the first keeps its part"
    assert without_long_chunks([middling, long], [384, 128], 512) == [384, 128], "none ends"
    assert without_long_chunks([short, middling], [300, 208], 512) == [300, 208], "none is long"


progress = st.builds(
    Progress, computed=st.integers(0, 100).map(lambda n: n * PAGE), pending=st.integers(2, 5000)
)


@given(st.lists(progress, max_size=12), st.integers(PAGE, 4096), st.integers(1, 4))
def test_chunks_fill_the_budget_and_never_pass_it(prompts: list[Progress], budget: int, sharers: int) -> None:
    chunks = share(prompts, budget, sharers=min(sharers, max(1, len(prompts))))
    assert sum(chunks) <= budget
    for prompt, chunk in zip(prompts, chunks, strict=True):
        assert 0 <= chunk <= prompt.pending
        assert chunk == prompt.pending or (prompt.computed + chunk) % PAGE == 0
    unserved = sum(prompt.pending for prompt in prompts) - sum(chunks)
    assert unserved == 0 or sharers > 1 or budget - sum(chunks) < PAGE * (len(prompts) + 1)
    assert not prompts or sum(chunks) > 0


@given(st.lists(progress, min_size=1, max_size=12), st.integers(PAGE, 1024))
def test_without_long_chunks_shares_only_shrink_and_the_first_prompt_keeps_its_chunk(
    prompts: list[Progress], budget: int
) -> None:
    chunks = share(prompts, budget)
    kept = without_long_chunks(prompts, chunks, budget)
    assert kept[0] == chunks[0]
    for prompt, chunk, less in zip(prompts, chunks, kept, strict=True):
        assert 0 <= less <= chunk
        assert less == chunk if chunk == prompt.pending < 4 * budget else True
        assert less == prompt.pending or (prompt.computed + less) % PAGE == 0
