"""The remembered ranks are those of a search from the root, whatever happened to the cache meanwhile."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from engine.core.request import Request, SchedulingState
from engine.core.sampling_params import SamplingParams
from engine.kv.cache.radix import RadixCache
from engine.sched.queue.prefix_ranker import PrefixRanker

PAGE = 2

sequences = st.lists(st.integers(0, 1), min_size=1, max_size=14)
events = st.one_of(
    st.tuples(st.just("insert"), sequences),
    st.tuples(st.just("evict"), st.integers(1, 3)),
    st.tuples(st.just("touch"), sequences),
    st.tuples(st.just("leave"), st.integers(0, 9)),
)


def waiting(prompts: list[list[int]]) -> list[Request]:
    return [
        Request(i, prompt, SamplingParams(max_tokens=1), scheduling=SchedulingState(number=i))
        for i, prompt in enumerate(prompts)
    ]


def cached_pages(cache: RadixCache, request: Request) -> int:
    return len(cache.match(request.tokens(0, request.num_tokens - 1), cache.root(), touch=False).pages)


@settings(max_examples=200, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=8), st.lists(events, max_size=25))
def test_the_longest_match_first(prompts: list[list[int]], happened: list[tuple[str, object]]) -> None:
    cache = RadixCache(PAGE)
    ranker = PrefixRanker(cache, depth_first=False)
    requests = waiting(prompts)
    page = 0
    for event, what in happened:
        if event == "insert":
            assert isinstance(what, list)
            whole = what[: len(what) // PAGE * PAGE]
            cache.insert(whole, range(page, page + len(whole) // PAGE), cache.root())
            page += len(whole)
        elif event == "touch":
            assert isinstance(what, list)
            cache.match(what, cache.root())  # splits edges
        elif event == "evict":
            assert isinstance(what, int)
            cache.evict(what)
        elif requests and isinstance(what, int):
            ranker.forget(requests.pop(what % len(requests)))
        ranked = ranker.order(requests, lambda request: request)
        assert ranked == sorted(requests, key=lambda request: -cached_pages(cache, request))


@settings(max_examples=50, deadline=None)
@given(st.lists(sequences, min_size=1, max_size=8), st.lists(sequences, max_size=8))
def test_requests_below_one_node_stay_together(prompts: list[list[int]], cached: list[list[int]]) -> None:
    cache = RadixCache(PAGE)
    for index, sequence in enumerate(cached):
        whole = sequence[: len(sequence) // PAGE * PAGE]
        cache.insert(whole, range(100 * index, 100 * index + len(whole) // PAGE), cache.root())
    requests = waiting(prompts)
    ranked = PrefixRanker(cache, depth_first=True).order(requests, lambda request: request)
    for node in cache.nodes():
        below = [
            index
            for index, request in enumerate(ranked)
            if node in above(cache, request) and cached_pages(cache, request) >= node.depth
        ]
        assert not below or below == list(range(below[0], below[-1] + 1))


def test_requests_below_nodes_with_as_many_requests_keep_their_order() -> None:
    cache = RadixCache(PAGE)
    for token in range(30):
        cache.insert([token] * PAGE, [token], cache.root())
    requests = waiting([[11 * number % 30] * (PAGE + 1) for number in range(30)])
    assert PrefixRanker(cache, depth_first=True).order(requests, lambda request: request) == requests


def above(cache: RadixCache, request: Request) -> list[object]:
    node = cache.match(request.tokens(0, request.num_tokens - 1), cache.root(), touch=False).node
    path: list[object] = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path
