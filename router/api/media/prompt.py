"""The prompt of a conversation with images: what replaces each of them, and where its rows are."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from router.api.media.facts import ProcessedImage, ProcessorFacts
from router.api.media.marks import numbers_in
from router.errors import InvalidRequest
from rpc.baton.v1 import worker_pb2

_ROLES: Final = ("user", "tool")
"""Roles whose messages may have images."""


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """Images of a prompt of token ids."""

    items: Sequence[worker_pb2.MediaItem] = ()
    keys: Sequence[int] = ()
    """Keys of all positions; empty without images."""


NO_MEDIA: Final = PromptMedia()


def require_places(messages: Iterable[Mapping[str, Any]], facts: ProcessorFacts) -> None:
    """Raise InvalidRequest for images in messages of the wrong role, and for texts that look like images.

    `messages`: as `marks.taken_out` returns them.
    """
    for number, message in enumerate(messages):
        place = f"messages.{number}.content"
        content = message.get("content") or ""
        if message["role"] not in _ROLES and numbers_in(content):
            raise InvalidRequest(f"A message of the role {message['role']} cannot have images.", param=place)
        for token in (facts.placeholder, facts.row):
            if token in content:
                raise InvalidRequest(
                    f"The text has {token!r}, which stands for an image of the request; leave it out.",
                    param=place,
                )


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """A rendered conversation with the texts of its images in their places."""

    text: str
    images: Sequence[ProcessedImage] = ()
    facts: ProcessorFacts | None = None
    """None: there are no images."""
    pieces: Sequence[str] = ()
    """The text between images."""

    @classmethod
    def of(cls, rendered: str, images: Sequence[ProcessedImage], facts: ProcessorFacts) -> ExpandedPrompt:
        """`rendered` has a placeholder for each image. Raises InvalidRequest."""
        first, *rest = pieces = rendered.split(facts.placeholder)
        if len(rest) != len(images):
            raise InvalidRequest(
                f"The prompt has {len(rest)} times {facts.placeholder!r}, for {len(images)} images.",
                param="messages",
            )
        text = first + "".join(image.text + piece for image, piece in zip(images, rest, strict=True))
        return cls(text, images, facts, pieces)

    def end_of(self, end: int) -> int:
        """Characters of `text` up to `end` characters of the rendered conversation."""
        if self.facts is None:
            return end
        at, grown, mark = 0, 0, len(self.facts.placeholder)
        for piece, image in zip(self.pieces, self.images, strict=False):
            at += len(piece) + mark
            if at > end:
                break
            grown += len(image.text) - mark
        return end + grown

    def placed(self, ids: Sequence[int]) -> PromptMedia:
        """The items of the prompt, with their places. `ids`: tokens of `text`. Raises InvalidRequest."""
        if self.facts is None:
            return NO_MEDIA
        rows = np.flatnonzero(np.asarray(ids) == self.facts.row_id)
        if len(rows) != sum(image.rows for image in self.images):
            raise InvalidRequest(
                f"The text of the prompt has {self.facts.row!r}, which stands for a part of an image.",
                param="messages",
            )
        keys, items, begin = array("q", ids), list[worker_pb2.MediaItem](), 0
        for image in self.images:
            mine = rows[begin : begin + image.rows]
            begin += image.rows
            offset, end = int(mine[0]), int(mine[-1]) + 1
            if end - offset != len(image.keys):
                raise InvalidRequest("The tokens of an image are not those of its text.", param="messages")
            item = worker_pb2.MediaItem(offset=offset)
            item.MergeFrom(image.item)
            items.append(item)
            keys[offset:end] = image.keys
        return PromptMedia(items, keys)
