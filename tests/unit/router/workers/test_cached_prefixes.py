"""What the router knows of a worker's prefix cache, and what it makes of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import block_hashes
from router.placement.by_load import LoadView, prefix_aware
from router.workers.cached_prefixes import CachedPrefixes

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


def test_a_request_goes_where_the_least_is_left_to_compute() -> None:
    hit = LoadView(tokens=1900, cached_tokens=1000)
    assert prefix_aware([LoadView(tokens=100), hit], 0) == 1
    assert prefix_aware([LoadView(tokens=100), LoadView(tokens=2200, cached_tokens=1000)], 0) == 0


def test_without_a_hit_equals_take_turns() -> None:
    workers = [LoadView(tokens=5), LoadView(tokens=5)]
    assert [prefix_aware(workers, turn) for turn in range(4)] == [0, 1, 0, 1]


def test_a_hot_prefix_spreads_instead_of_overloading_the_worker_that_has_it() -> None:
    """448 requests with one prefix of 10,000 tokens and 500 of their own, none of which ends."""
    workers = [CachedPrefixes(500) for _ in range(4)]
    tokens, given_to = [0] * 4, [0] * 4
    for request in range(448):
        blocks = block_hashes([7] * 10_000 + [request] * 500, 500)
        views = [
            LoadView(tokens=load, cached_tokens=cache.matching_tokens(blocks))
            for cache, load in zip(workers, tokens, strict=True)
        ]
        chosen = prefix_aware(views, request)
        tokens[chosen] += 10_500 - views[chosen].cached_tokens
        given_to[chosen] += 1
        workers[chosen].expect(blocks)
    assert sum(tokens) == 4 * 10_000 + 448 * 500  # each computed it once
    assert max(given_to) - min(given_to) <= 41
