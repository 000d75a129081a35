"""Where a block of a conversation ends in its prompt: in characters, then in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

_STRIDE: Final = 4096


class Offsets(Protocol):
    """The part of `tokenizers.Encoding` that is used here."""

    def char_to_token(self, char_pos: int, /) -> int | None: ...


def block_end(prompt: str, altered: Iterable[str]) -> int:
    """Characters up to the end of a block.

    `altered`: renderings of the same conversation in which the block ends differently. The block ends where
    the prompt begins to differ from one of them, the latest; 0 if it differs from none. O(characters).
    """
    return max((common_length(prompt, other) for other in altered if other != prompt), default=0)


def common_length(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    shorter = min(len(one), len(other))
    begin = 0
    while begin < shorter and one[begin : begin + _STRIDE] == other[begin : begin + _STRIDE]:
        begin += _STRIDE
    for at in range(begin, shorter):
        if one[at] != other[at]:
            return at
    return shorter


def tokens_within(offsets: Offsets, end: int, characters: int, tokens: int) -> int:
    """Tokens that lie within the first `end` of a text's `characters`; `tokens`: of all."""
    for at in range(end, characters):
        # No token: whitespace that the tokenizer drops.
        if (token := offsets.char_to_token(at)) is not None:
            return token
    return tokens
