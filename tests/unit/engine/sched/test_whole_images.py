"""No chunk ends within an image that is computed whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.media import MediaItem
from engine.core.request import Request
from engine.core.sampling_params import SamplingParams
from engine.sched.chunk_size.whole_images import least_end, with_whole_images


@st.composite
def _prompts(draw: st.DrawFn) -> list[tuple[Request, int]]:
    """Prompts in progress, and tokens that they would get."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        media, end = [], 0
        for _ in range(draw(st.integers(0, 3))):
            media.append(MediaItem(bytes(32), end + draw(st.integers(0, 5)), draw(st.integers(1, 8))))
            end = media[-1].end
        request = Request(1, [1] * (end + 3), SamplingParams(max_tokens=1), media=tuple(media))
        request.num_computed = draw(st.integers(0, len(request.prompt) - 1))
        request.capacity = draw(st.integers(least_end(request), len(request.prompt)))
        made.append((request, draw(st.integers(0, request.capacity - request.num_computed))))
    return made


@given(prompts=_prompts(), spare=st.integers(0, 20))
def test_chunks_end_beside_images_and_the_first_makes_progress(
    prompts: list[tuple[Request, int]], spare: int
) -> None:
    requests, lengths = [request for request, _ in prompts], [length for _, length in prompts]
    room = sum(lengths) + spare
    whole = with_whole_images(requests, lengths, room)
    for request, length in zip(requests, whole, strict=True):
        end = request.num_computed + length
        assert length == 0 or not any(item.offset < end < item.end for item in request.media)
        assert request.num_computed + length <= request.capacity
    granted = [length for length in whole if length]
    assert bool(granted) == any(lengths)
    assert sum(whole) <= room or len(granted) == 1


def test_a_chunk_ends_before_the_image_that_does_not_fit() -> None:
    request = Request(1, [1] * 20, SamplingParams(max_tokens=1), media=(MediaItem(bytes(32), 4, 9),))
    request.capacity = 20
    assert with_whole_images([request], [10], 10) == [4]
    request.num_computed = 4
    assert with_whole_images([request], [6], 6) == [9]
    text = Request(2, [1] * 5, SamplingParams(max_tokens=1), capacity=5)
    assert with_whole_images([text, request], [5, 5], 10) == [5, 0]
    assert with_whole_images([text, request], [5, 5], 14) == [5, 9]
    request.capacity = 12  # the pages of a window do not reach the end of the image
    assert with_whole_images([request], [6], 20) == [0]
    assert least_end(request) == 13
