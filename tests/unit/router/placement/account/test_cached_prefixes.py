"""What the router knows of a worker's prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import block_hashes
from router.placement.account.cached_prefixes import CachedPrefixes

PAGE = 4
prompts = st.lists(st.integers(0, 1), max_size=24)


def test_a_page_is_named_with_all_that_is_before_it() -> None:
    assert block_hashes([1, 2, 3, 4, 1, 2], 2) != block_hashes([1, 2, 3, 4, 1, 3], 2)
    assert block_hashes([1, 2, 3, 4], 2) == block_hashes([1, 2, 3, 4, 9], 2)
    one, two, three = block_hashes([1, 2, 3, 4, 1, 2], 2)
    assert len({one, two, three}) == 3
    assert block_hashes([3, 4, 1, 2], 2, after=one) == [two, three]
    assert block_hashes([1, 2, 3, 4], 4) != block_hashes([1, 2, 3, 4], 2)[1:]


@given(cached=st.lists(prompts, max_size=6), asked=prompts)
def test_the_longest_cached_prefix_is_found(cached: list[list[int]], asked: list[int]) -> None:
    known = CachedPrefixes(PAGE)
    for prompt in cached:
        known.stored(block_hashes(prompt, PAGE))

    def shared(prompt: list[int]) -> int:
        pages = min(len(prompt), len(asked)) // PAGE
        return max(n for n in range(pages + 1) if prompt[: n * PAGE] == asked[: n * PAGE]) * PAGE

    assert known.matching_tokens(block_hashes(asked, PAGE)) == max(map(shared, cached), default=0)


def test_what_was_evicted_is_not_found_any_more() -> None:
    known = CachedPrefixes(2)
    blocks = block_hashes([1, 2, 3, 4, 5, 6], 2)
    known.stored(blocks)
    known.removed(blocks[1:])
    assert known.matching_tokens(blocks) == 2
    assert len(known) == 1


def test_a_prompt_under_way_counts_as_cached_until_its_request_ends() -> None:
    known = CachedPrefixes(2)
    first, second = block_hashes([1, 2, 3, 4], 2), block_hashes([1, 2, 5, 6], 2)
    known.expect(first)
    known.expect(second)
    assert known.matching_tokens(second) == 4
    known.forget(first)
    assert known.matching_tokens(first) == 2
    known.forget(second)
    assert known.matching_tokens(second) == 0


def test_the_end_of_a_prefix_may_be_on_a_tier() -> None:
    known = CachedPrefixes(PAGE)
    blocks = block_hashes(list(range(4 * PAGE)), PAGE)
    known.stored(blocks)
    known.stored(blocks[2:], below=True)
    assert (known.matching_tokens(blocks), known.tier_tokens(blocks)) == (4 * PAGE, 2 * PAGE)
    known.stored(blocks[2:3])
    assert known.tier_tokens(blocks) == PAGE
    known.removed(blocks[3:])
    assert (known.matching_tokens(blocks), known.tier_tokens(blocks)) == (3 * PAGE, 0)
