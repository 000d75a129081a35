"""Keys and namespaces tell origins apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.block_hash import block_hashes, root_hash
from common.block_key import block_keys, namespace_key, root_key
from common.origin import (
    NAMESPACE_BYTES,
    activation_key,
    are_keys_of,
    media_keys,
    namespace_of,
    with_weights,
)
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import UnservableRequest

PARTS = st.fixed_dictionaries(
    {
        "adapter": st.binary(max_size=2),
        "tenant": st.text(alphabet="ab", max_size=2),
        "cache_salt": st.text(alphabet="ab", max_size=2),
    }
)


@given(PARTS, PARTS)
def test_namespaces_are_equal_if_all_parts_are(
    one: dict[str, bytes | str], two: dict[str, bytes | str]
) -> None:
    first, second = namespace_of(**one), namespace_of(**two)  # type: ignore[arg-type]
    assert (first == second) == (one == two)
    assert len(first) == (NAMESPACE_BYTES if any(one.values()) else 0)


@given(PARTS, PARTS, st.text(alphabet="ab", max_size=2), st.text(alphabet="ab", max_size=2))
def test_requests_computed_with_other_weights_share_no_kv(
    one: dict[str, bytes | str], two: dict[str, bytes | str], old: str, new: str
) -> None:
    first = with_weights(namespace_of(**one), old)  # type: ignore[arg-type]
    second = with_weights(namespace_of(**two), new)  # type: ignore[arg-type]
    assert (first == second) == ((one, old) == (two, new))


def test_media_keys_are_no_tokens_and_differ_by_item_and_index() -> None:
    keys = [*media_keys(b"red", range(100)), *media_keys(b"blue", range(100))]
    assert len(set(keys)) == len(keys)
    assert all(-(1 << 63) <= key < 0 for key in keys)
    assert media_keys(b"red", range(40, 50)) == media_keys(b"red", range(100))[40:50]
    assert are_keys_of([5, keys[0], 7], [5, 9, 7])


@pytest.mark.parametrize("keys", [[5, 8, 7], [5, 9], [5, 9, 7, 1]])
def test_a_key_that_claims_another_token_is_refused(keys: list[int]) -> None:
    request = Request(1, [5, 9, 7], SamplingParams(max_tokens=1), prompt_keys=keys)
    with pytest.raises(UnservableRequest, match="key of the prompt"):
        request.check(vocab_size=10)


def test_keys_of_a_request_go_on_as_tokens() -> None:
    image = media_keys(b"red", range(2))
    request = Request(1, [5, 9, 9], SamplingParams(max_tokens=1), prompt_keys=[5, *image], output=[3, 4])
    request.check(vocab_size=10)
    assert list(request.keys(1, 5)) == [*image, 3, 4]
    assert list(request.tokens(1, 5)) == [9, 9, 3, 4]


def test_a_page_is_named_by_all_that_is_before_its_end() -> None:
    pages = block_hashes([1, 2, 3, 4, 5], 2)
    for place, same in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2)):
        keys = [1, 2, 3, 4, 5]
        keys[place] = 9
        assert [a == b for a, b in zip(pages, block_hashes(keys, 2), strict=True)] == [
            page < same for page in range(2)
        ]
    assert block_hashes([3, 4], 2, pages[0]) == pages[1:]


def test_the_key_of_an_activation_is_of_the_adapter_and_the_token() -> None:
    key = activation_key(b"one", 5)
    assert len({key, activation_key(b"two", 5), activation_key(b"one", 6)}) == 3
    assert key < 0


def test_keys_that_agree_in_32_bits_have_other_hashes_and_names() -> None:
    near, far = [1, 2], [1 + (1 << 32), 2]
    assert block_hashes(near, 2) != block_hashes(far, 2)
    root = root_key("weights")
    assert block_keys(near, 2, root) != block_keys(far, 2, root)


def test_the_seeds_of_a_namespace_are_its_own_and_none_is_as_before() -> None:
    salted, other = namespace_of(cache_salt="a"), namespace_of(cache_salt="b")
    assert len({root_hash(16), root_hash(16, salted), root_hash(16, other), root_hash(32, salted)}) == 4
    assert block_hashes([1, 2], 2) == block_hashes([1, 2], 2, root_hash(2))
    root = root_key("weights")
    assert namespace_key(root, b"") == root
    assert len({root, namespace_key(root, salted), namespace_key(root, other)}) == 3
