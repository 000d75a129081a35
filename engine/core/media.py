"""Media items of a prompt, such as images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from common.origin import media_keys
from engine.errors import UnservableRequest

DIGEST_BYTES: Final = 32
_WIDTHS: Final = {"float32": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
"""Types of arrays, and bytes of their elements."""


@dataclass(frozen=True, slots=True)
class MediaArray:
    """One output of the model's processor for one item."""

    name: str
    """As the processor and the model name it, such as "pixel_values"."""
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    """Little endian, in C order."""

    def check(self) -> None:
        """Raises UnservableRequest unless the size of `data` is that of the shape."""
        if self.dtype not in _WIDTHS:
            raise UnservableRequest(
                f"{self.name}: arrays of {self.dtype} are not known; use {', '.join(_WIDTHS)}"
            )
        if len(self.data) != prod(self.shape) * _WIDTHS[self.dtype]:
            raise UnservableRequest(
                f"{self.name}: {len(self.data)} bytes are not {self.dtype} of the shape {[*self.shape]}"
            )


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An image at positions [offset, offset + length) of the prompt.

    Rows of the vision model replace the embeddings of those positions of it whose token is the model's
    placeholder, in order. The others are text, such as the ends of lines of an image.
    """

    digest: bytes
    """`DIGEST_BYTES`, of the processor's configuration and of all arrays: equal digests have equal rows. The
    keys of its positions are `media_keys(digest, range(length))`."""
    offset: int
    length: int
    grid: tuple[int, ...] = ()
    """Frames, rows and columns of patches, where positions are derived from them; else empty."""
    arrays: tuple[MediaArray, ...] = ()
    """Empty where the KV of the item comes from another worker."""

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Encoding:
    """The time that the vision model took for an item."""

    item: MediaItem
    begin: float
    """On time.monotonic()."""
    seconds: float


@dataclass(frozen=True, slots=True)
class MediaUse:
    """Rows of media items that requests looked up for one step."""

    queries: int = 0
    """Items, each once for a request."""
    hits: int = 0
    """Items whose rows were kept since an earlier request."""
    encoded: Sequence[tuple[int, Encoding]] = ()
    """Items that were encoded, each with the id of its request."""


NO_MEDIA_USE: Final = MediaUse()


def check_media(media: Sequence[MediaItem], num_tokens: int, keys: Sequence[int]) -> None:
    """Raises UnservableRequest unless items follow one another within a prompt of `num_tokens`, and have
    their keys there. O(positions of media).
    """
    end = 0
    for item in media:
        if len(item.digest) != DIGEST_BYTES:
            wrong = len(item.digest)
            raise UnservableRequest(f"the digest of a media item has {DIGEST_BYTES} bytes, not {wrong}")
        if item.length < 1 or item.offset < end or item.end > num_tokens:
            raise UnservableRequest(
                f"a media item at [{item.offset}, {item.end}) is not within the prompt of {num_tokens}"
                f" tokens, after the item before it, which ends at {end}"
            )
        if item.grid and (len(item.grid) != 3 or min(item.grid) < 1):
            grid = [*item.grid]
            raise UnservableRequest(f"the grid of a media item is frames, rows and columns, not {grid}")
        for array in item.arrays:
            array.check()
        end = item.end
    for item in media:
        if keys[item.offset : item.end] != media_keys(item.digest, range(item.length)):
            place = f"[{item.offset}, {item.end})"
            raise UnservableRequest(f"the keys of positions {place} are not those of their item")
