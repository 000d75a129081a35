"""Rows of steps, and which of them are kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.media import MediaItem
from engine.core.plan import Chunk, ChunkKind, StepPlan
from engine.core.request import Request
from engine.media.encoder import MediaEncoder
from engine.model_config.parts.vision_spec import VisionSpec
from tests.unit.engine.media.vlms import PLACEHOLDER, Image, Part, request_of


class _Tower:
    """The rows of an item are its first byte and their numbers."""

    def __init__(self) -> None:
        self.encoded: list[int] = []

    def rows(self, item: MediaItem) -> Tensor:
        value, *others = item.arrays[0].data
        self.encoded.append(value)
        return torch.tensor([[value, row] for row in range(1 + len(others))], dtype=torch.float32)


def _image(value: int, *tokens: int) -> Image:
    pixels = torch.tensor([[value] * tokens.count(PLACEHOLDER)], dtype=torch.uint8)
    return Image(tokens, {"pixel_values": pixels})


def _encoder(tower: _Tower, cache_bytes: int) -> MediaEncoder:
    spec = VisionSpec(placeholder=PLACEHOLDER, arrays=frozenset({"pixel_values"}))
    return MediaEncoder(tower, spec, cache_bytes, torch.device("cpu"))


def _step(*chunks: tuple[Request, int, int]) -> StepPlan:
    kinds = (ChunkKind.DECODE, ChunkKind.PREFILL)
    return StepPlan(
        [
            Chunk(request, 0, start, end - start, None, kind=kinds[end - start > 1])
            for request, start, end in chunks
        ]
    )


def _placed(encoder: MediaEncoder, plan: StepPlan) -> dict[int, list[float]]:
    media = encoder.of(plan).rows
    return {} if media is None else dict(zip(media.rows.tolist(), media.values.tolist(), strict=True))


P = PLACEHOLDER
PARTS: Sequence[Part] = [[1, 2], _image(7, P, 3, P, P), _image(9, P), [4]]


def test_only_placeholders_take_rows_wherever_chunks_are_cut() -> None:
    whole = {2: [7, 0], 4: [7, 1], 5: [7, 2], 6: [9, 0]}
    for cut in range(1, 8):
        request, encoder = request_of(1, PARTS), _encoder(_Tower(), 1000)
        first = _placed(encoder, _step((request, 0, cut)))
        second = _placed(encoder, _step((request, cut, 8)))
        assert first | {cut + row: values for row, values in second.items()} == whole


def test_rows_of_several_requests_are_where_their_chunks_are() -> None:
    one, other = request_of(1, PARTS), request_of(2, [[5], _image(8, P, P)])
    plan = _step((one, 4, 8), (other, 0, 2))
    assert _placed(_encoder(_Tower(), 0), plan) == {0: [7, 1], 1: [7, 2], 2: [9, 0], 5: [8, 0]}


def test_rows_that_do_not_fit_the_placeholders_are_an_error_of_the_request() -> None:
    image = _image(7, P, P)
    short = Image(image.tokens, {"pixel_values": image.arrays["pixel_values"][:, :1]})
    media = _encoder(_Tower(), 0).of(_step((request_of(1, [short, [2]]), 0, 3), (request_of(2, PARTS), 0, 4)))
    assert str(media.errors[1]) == "1 rows of an image do not fit its 2 placeholders"
    assert [*media.errors] == [1]
    assert media.rows is not None
    assert media.rows.rows.tolist() == [5]


def test_items_are_kept_by_digest_and_the_least_recently_used_go_first() -> None:
    tower = _Tower()
    encoder = _encoder(tower, 2 * 8)  # two items of one row
    requests = [request_of(value, [_image(value, P), [1]]) for value in (1, 2, 3)]
    for index in (0, 1, 0, 2, 0, 1):
        encoder.of(_step((requests[index], 0, 2)))
    assert tower.encoded == [1, 2, 3, 2]


def test_an_item_larger_than_the_cache_serves_the_chunks_that_need_it() -> None:
    tower = _Tower()
    encoder, request = _encoder(tower, 0), request_of(1, PARTS)
    for start in range(2, 6):
        encoder.of(_step((request, start, start + 1)))
    assert tower.encoded == [7]


def test_steps_without_rows_of_images_have_nothing() -> None:
    encoder, request = _encoder(_Tower(), 0), request_of(1, PARTS)
    for plan in (_step((request, 0, 2)), _step((request, 7, 8)), _step((request_of(2, [[1, 2]]), 0, 2))):
        assert encoder.of(plan).rows is None


def test_a_step_has_images_while_its_chunks_begin_before_the_last_one_ends() -> None:
    request = request_of(1, [[1, 2], _image(7, P, P, P), [4] * 5])
    starts = [start for start in range(8) if _step((request, start, start + 2)).has_images]
    assert starts == [0, 1, 2, 3, 4]
    assert not _step((request_of(2, [[1, 2, 3]]), 0, 3)).has_images


def test_an_item_is_looked_up_once_for_a_request_and_hit_by_those_after_it() -> None:
    encoder = _encoder(_Tower(), 1000)
    first, second = request_of(1, PARTS), request_of(2, PARTS)
    steps = [_step((first, 0, 4)), _step((first, 4, 8)), _step((second, 0, 3), (first, 7, 8))]
    uses = [encoder.of(step).use() for step in steps]
    assert [(use.queries, use.hits) for use in uses] == [(1, 0), (1, 0), (1, 1)]
    assert [[(id, encoding.item) for id, encoding in use.encoded] for use in uses] == [
        [(1, first.media[0])],
        [(1, first.media[1])],
        [],
    ]
    assert all(encoding.seconds >= 0 for use in uses for _, encoding in use.encoded)
