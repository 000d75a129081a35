"""Chunks of prompts with images whose tokens attend to those after them: they end beside such images."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request


def with_whole_images(prompts: Sequence[Request], lengths: Sequence[int], room: int) -> list[int]:
    """`lengths` of the next chunks, none of which ends within an image.

    A chunk ends before the image in which it would end, or if it begins there, with the image. It gets more
    tokens for that, up to `room` in all chunks; the first chunk of a step gets them in any case, so that
    images do not wait for ever. A request whose pages do not reach the end of its image gets none: see
    `RunningDecodes.make_room`.
    """
    if not any(request.media for request in prompts):
        return list(lengths)
    whole: list[int] = []
    for request, length in zip(prompts, lengths, strict=True):
        fitted = _fitted(request, length)
        if fitted > length and any(whole) and sum(whole) + fitted > room:
            fitted = 0
        elif any(whole) and sum(whole) + fitted > room:  # an image before it has taken more
            fitted = _fitted(request, max(room - sum(whole), 0))
            fitted = fitted if sum(whole) + fitted <= room else 0
        whole.append(fitted)
    return whole


def least_end(request: Request) -> int:
    """End of the shortest chunk that the request may get next."""
    start = request.num_computed
    within = (item.end for item in request.media if item.offset <= start < item.end)
    return next(within, start + 1)


def _fitted(request: Request, length: int) -> int:
    start = request.num_computed
    for item in request.media:
        if length and item.offset < start + length < item.end:
            length = item.offset - start if item.offset > start else item.end - start
            break
    return length if start + length <= request.capacity else 0
