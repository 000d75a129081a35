from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.kv_groups import (
    KVGroup,
    KVHeads,
    RequestPages,
    full_group,
    group_layers,
    kept_places,
    page_features,
)


def sizes(windows: list[int | None], context: int = 131_072) -> list[tuple[str, int]]:
    return [(group.kind, len(group.layers)) for group in group_layers(windows, context)]


def test_layers_that_all_attend_to_everything_are_one_group() -> None:
    assert group_layers([None] * 32, 8192) == full_group(32)


def test_layers_with_one_window_are_one_group() -> None:
    assert sizes([4096] * 32) == [("window-4096", 32)]


def test_alternating_layers_are_two_groups() -> None:
    assert sizes([128, None] * 12) == [("window-128", 12), ("full", 12)]


@pytest.mark.parametrize(
    ("layers", "full", "windows"),
    [(26, [4], [4] * 5 + [2]), (34, [5], [5] * 5 + [4]), (62, [10], [10] * 5 + [2])],
)
def test_five_local_layers_to_a_global_one_are_cut_by_the_global_ones(
    layers: int, full: list[int], windows: list[int]
) -> None:
    cut = sizes([None if (layer + 1) % 6 == 0 else 1024 for layer in range(layers)])
    assert sorted(count for kind, count in cut if kind == "full") == full
    assert [count for kind, count in cut if kind == "window-1024"] == windows


@given(st.lists(st.sampled_from([None, 3, 16]), min_size=1, max_size=40), st.integers(1, 100))
def test_every_layer_is_in_one_group_of_its_kind(windows: list[int | None], context: int) -> None:
    groups = group_layers(windows, context)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert all(windows[layer] == group.window for group in groups for layer in group.layers)


def test_layers_of_other_heads_are_grouped_so_that_pages_are_full() -> None:
    """As Gemma 4 E2B: 12 layers of 256 features with a window, 3 of 512 without, others that read them."""
    windows = [None if (layer + 1) % 5 == 0 else 512 for layer in range(15)]
    heads = [KVHeads(1, 512 if window is None else 256) for window in windows]
    groups = group_layers(windows, 131_072, heads, [each.features for each in heads])
    assert [(group.window, len(group.layers), group.heads) for group in groups] == [
        *[(512, 6, KVHeads(1, 256))] * 2,
        (None, 3, KVHeads(1, 512)),
    ]
    assert page_features([6, 6, 3], [group.heads or KVHeads(1, 1) for group in groups]) == 2 * 6 * 256


@given(st.lists(st.sampled_from([(3, 8), (None, 8), (None, 24), (5, 16)]), min_size=1, max_size=30))
def test_every_layer_is_in_one_group_of_its_heads(layers: list[tuple[int | None, int]]) -> None:
    windows, widths = [window for window, _ in layers], [width for _, width in layers]
    groups = group_layers(windows, 100, [KVHeads(2, width // 2) for width in widths], widths)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(layers)))
    for group in groups:
        assert {layers[layer] for layer in group.layers} == {
            (group.window, group.heads.features if group.heads else 0)
        }


@given(st.lists(st.sampled_from([None, 1, 3, 16]), min_size=1, max_size=6), st.integers(0, 60))
def test_the_pages_kept_are_those_with_a_token_that_the_next_one_sees(
    windows: list[int | None], num_tokens: int
) -> None:
    groups, page_size = group_layers(windows, 100), 4
    kept = {
        (number, token // page_size)
        for number, group in enumerate(groups)
        for token in range(num_tokens)
        if group.window is None or token > num_tokens - group.window
    }
    blocks = range(-(-num_tokens // page_size))
    pages = len(kept_places(groups, page_size, num_tokens, blocks))
    # A page may hold only tokens that no later one sees where the window ends at its boundary.
    assert len(kept) <= pages <= len(kept) + len(groups)


def test_pages_of_a_request_are_counted_for_every_group_and_for_windows_only_once() -> None:
    pages = RequestPages.of_groups(4, (KVGroup((0,)), KVGroup((1,), 8)), largest_chunk=16)
    assert pages.of(20) == 5 + 5
    assert pages.of(4000) == 1000 + 11
    assert RequestPages.of_groups(4, (KVGroup((0,), 8),), largest_chunk=None).of(4000) == 1000


@given(st.integers(0, 300), st.integers(1, 2000), st.sampled_from([None, 1, 6]))
def test_the_largest_request_fits_and_the_next_block_does_not(
    num_pages: int, limit: int, window: int | None
) -> None:
    pages = RequestPages.of_groups(4, (KVGroup((0,)), KVGroup((1,), window)), largest_chunk=8)
    largest = pages.largest_request(num_pages, limit)
    assert pages.of(largest) <= num_pages
    assert largest == limit or pages.of(largest + 1) > num_pages


def test_as_many_tokens_fit_as_requests_of_a_length_have() -> None:
    assert RequestPages(16).tokens_in(100, 160) == 1600
    assert RequestPages(16, (sys.maxsize, 10)).tokens_in(110, 1600) == 1600
