from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.sched.token_budget import Progress, split_budget, unfilled, whole_prompts

PAGE = 16


def test_one_prompt_gets_the_whole_step() -> None:
    assert split_budget([Progress(0, 100_000)], 512, PAGE) == [512]


def test_a_step_goes_to_prompts_in_their_order_and_what_is_left_to_the_next() -> None:
    prompts = [Progress(0, 700), Progress(0, 5000), Progress(0, 9000)]
    assert split_budget(prompts, 2048, PAGE) == [700, 1344, 0]


def test_a_longest_chunk_leaves_room_for_others() -> None:
    assert split_budget([Progress(0, 5000), Progress(0, 300)], 1024, PAGE, longest_chunk=256) == [256, 256]


def test_a_prompt_that_ends_does_not_wait_for_a_part_of_a_long_one() -> None:
    long, short, middling = Progress(1024, 20_000), Progress(0, 300), Progress(0, 900)
    assert unfilled([short, long], [300, 208], 512) == [300, 0]
    assert unfilled([long, short], [208, 300], 512) == [208, 300], "the first in order keeps its part"
    assert unfilled([middling, long], [384, 128], 512) == [384, 128], "none ends"
    assert unfilled([short, middling], [300, 208], 512) == [300, 208], "none is long"


def test_without_chunking_a_prompt_goes_whole_or_waits() -> None:
    assert whole_prompts([Progress(0, 900), Progress(0, 200), Progress(0, 100)], 1000) == [900, 0, 0]
    assert whole_prompts([Progress(0, 5000)], 1000) == [5000]


progress = st.builds(
    Progress, computed=st.integers(0, 100).map(lambda n: n * PAGE), pending=st.integers(2, 5000)
)


@given(st.lists(progress, max_size=12), st.integers(PAGE, 4096))
def test_chunks_fill_the_budget_and_never_pass_it(prompts: list[Progress], budget: int) -> None:
    chunks = split_budget(prompts, budget, PAGE)
    assert sum(chunks) <= budget
    for prompt, chunk in zip(prompts, chunks, strict=True):
        assert 0 <= chunk <= prompt.pending
        assert chunk == prompt.pending or (prompt.computed + chunk) % PAGE == 0
    unserved = sum(prompt.pending for prompt in prompts) - sum(chunks)
    assert unserved == 0 or budget - sum(chunks) < PAGE * (len(prompts) + 1)
    assert not prompts or sum(chunks) > 0


@given(st.lists(progress, min_size=1, max_size=12), st.integers(PAGE, 1024))
def test_nobody_gets_more_for_a_step_that_is_not_filled_and_the_first_gets_on(
    prompts: list[Progress], budget: int
) -> None:
    chunks = split_budget(prompts, budget, PAGE)
    kept = unfilled(prompts, chunks, budget)
    assert kept[0] == chunks[0]
    for prompt, chunk, less in zip(prompts, chunks, kept, strict=True):
        assert 0 <= less <= chunk
        assert less == chunk if chunk == prompt.pending < 4 * budget else True
        assert less == prompt.pending or (prompt.computed + less) % PAGE == 0
