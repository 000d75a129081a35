from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from common.origin import media_keys
from engine.core.media import MediaArray, MediaItem
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.errors import UnservableRequest

_PIXELS = MediaArray("pixel_values", "float32", (1, 2, 2), bytes(16))
_ITEM = MediaItem(b"r" * 32, offset=1, length=3, grid=(1, 2, 6), arrays=(_PIXELS,))
_AFTER = MediaItem(b"b" * 32, offset=4, length=2)


def _request(*media: MediaItem, keys: array[int] | None = None) -> Request:
    prompt = array("q", [7] * 8)
    for item in media:
        if keys is None and item.offset >= 0 and item.end <= len(prompt):
            prompt[item.offset : item.end] = media_keys(item.digest, range(item.length))
    given = prompt if keys is None else keys
    return Request(1, [7] * 8, SamplingParams(max_tokens=1), prompt_keys=given, media=media)


def test_items_in_order_with_their_keys_are_accepted() -> None:
    _request(_ITEM, _AFTER).check(vocab_size=10)


@pytest.mark.parametrize(
    ("media", "why"),
    [
        ([_AFTER, _ITEM], "after the item before it"),
        ([_ITEM, replace(_AFTER, offset=3)], "after the item before it"),
        ([replace(_AFTER, offset=7)], "within the prompt"),
        ([replace(_AFTER, length=0)], "within the prompt"),
        ([replace(_ITEM, digest=b"short")], "32 bytes"),
        ([replace(_ITEM, grid=(1, 2))], "frames, rows and columns"),
        ([replace(_ITEM, grid=(1, 0, 2))], "frames, rows and columns"),
        ([replace(_ITEM, arrays=(replace(_PIXELS, data=bytes(15)),))], "15 bytes"),
        ([replace(_ITEM, arrays=(replace(_PIXELS, dtype="object"),))], "object"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(media: list[MediaItem], why: str) -> None:
    with pytest.raises(UnservableRequest, match=why):
        _request(*media).check(vocab_size=10)


@pytest.mark.parametrize("wrong", ["tokens", "of another image", "shifted"])
def test_an_item_without_its_own_keys_is_refused(wrong: str) -> None:
    keys = _request(_ITEM).prompt_keys[:]
    assert isinstance(keys, array)
    others = {
        "tokens": array("q", [7] * 3),
        "of another image": media_keys(b"b" * 32, range(3)),
        "shifted": media_keys(_ITEM.digest, range(1, 4)),
    }
    keys[1:4] = others[wrong]
    with pytest.raises(UnservableRequest, match="not those of their item"):
        _request(_ITEM, keys=keys).check(vocab_size=10)
