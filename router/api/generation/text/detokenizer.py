"""Incremental detokenization: each token is decoded once, and incomplete characters are held back."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

_new_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS: Final = 6
_LONGEST_CHARACTER_TOKENS: Final = 8
"""A character has at most four bytes; if it is incomplete after this many tokens, it is invalid."""


class Detokenizer(Protocol):
    """Detokenizes one sequence. The concatenated pieces are the text of the whole sequence."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """New text; bytes of an incomplete character are held back."""
        ...

    def flush(self) -> str:
        """The text of a trailing incomplete character; call it at the end."""
        ...


class ByteDetokenizer:
    """For vocabularies whose tokens are byte strings: one table lookup per token."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        """`table[id]` is the bytes of token `id`."""
        self._table: Final = table
        self._decode: Final = _new_utf8_decoder(errors="replace").decode

    def feed(self, token_ids: Sequence[int]) -> str:
        return self._decode(b"".join(map(self._table.__getitem__, token_ids)))

    def flush(self) -> str:
        return self._decode(b"", True)


class WindowDetokenizer:
    """For any tokenizer: a token's text is the text that it adds to the few tokens before it.

    Decoders such as WordPiece's depend on neighbours, so tokens cannot be decoded one by one. The window
    starts at the end of the prompt and advances with every piece, so the cost per token is constant.
    """

    __slots__ = ("_decode", "_ids", "_shown")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode: Final = decode
        self._ids = list(prompt[-_CONTEXT_TOKENS:])
        self._shown = len(self._ids)
        """Tokens at the start of the window whose text was already shown."""

    def feed(self, token_ids: Sequence[int]) -> str:
        self._ids.extend(token_ids)
        return self._show(*self._whole_characters())

    def flush(self) -> str:
        return self._show(len(self._ids), self._decode(self._ids))

    def _whole_characters(self) -> tuple[int, str]:
        """The end of the window without a trailing incomplete character, and the text up to there."""
        size = len(self._ids)
        for end in range(size, max(size - _LONGEST_CHARACTER_TOKENS, self._shown), -1):
            text = self._decode(self._ids[:end])
            if not text.endswith(_REPLACEMENT):
                return end, text
        end = self._shown if size - self._shown < _LONGEST_CHARACTER_TOKENS else size
        return end, self._decode(self._ids[:end])

    def _show(self, end: int, text: str) -> str:
        """The new part of `text`, which is the text of the tokens before `end`."""
        before = self._decode(self._ids[: self._shown])
        self._ids = self._ids[max(end - _CONTEXT_TOKENS, 0) :]
        self._shown = min(end, _CONTEXT_TOKENS)
        return text[len(before) :]
