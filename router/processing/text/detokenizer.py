"""Token ids to text, as they come: no token's text is decoded twice, and no half character is shown."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Final, Protocol

__all__ = ["ByteDetokenizer", "Detokenizer", "WindowDetokenizer"]

_new_utf8_decoder: Final = codecs.getincrementaldecoder("utf-8")
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_TOKENS: Final = 6
_LONGEST_CHARACTER_TOKENS: Final = 8
"""A character has at most four bytes; if it is not whole after this many tokens it never will be."""


class Detokenizer(Protocol):
    """The text of one sequence. Joined, the pieces are the text of the whole."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """New text. Bytes of an unfinished character wait for the rest of it."""
        ...

    def flush(self) -> str:
        """What an unfinished character leaves behind, for when no more tokens come."""
        ...


class ByteDetokenizer:
    """For vocabularies whose tokens are byte strings: one table look-up a token."""

    __slots__ = ("_decode", "_table")

    def __init__(self, table: Sequence[bytes]) -> None:
        """`table[id]` is what token `id` stands for."""
        self._table: Final = table
        self._decode: Final = _new_utf8_decoder(errors="replace").decode

    def feed(self, token_ids: Sequence[int]) -> str:
        table = self._table
        return self._decode(b"".join([table[token_id] for token_id in token_ids]))

    def flush(self) -> str:
        return self._decode(b"", True)


class WindowDetokenizer:
    """For any tokenizer: a token's text is what it adds to the text of the few tokens before it.

    Decoders such as WordPiece's look at neighbours, so tokens cannot be decoded one by one. The window
    starts with the end of the prompt and moves on with every piece shown, so the cost stays constant.
    """

    __slots__ = ("_decode", "_ids", "_shown")

    def __init__(self, decode: Callable[[Sequence[int]], str], prompt: Sequence[int]) -> None:
        self._decode: Final = decode
        self._ids = list(prompt[-_CONTEXT_TOKENS:])
        self._shown = len(self._ids)
        """Tokens at the start of the window whose text was shown already."""

    def feed(self, token_ids: Sequence[int]) -> str:
        self._ids.extend(token_ids)
        return self._show(*self._whole_characters())

    def flush(self) -> str:
        return self._show(len(self._ids), self._decode(self._ids))

    def _whole_characters(self) -> tuple[int, str]:
        """Where the window ends without the beginning of a character at its end, and its text up to there."""
        size = len(self._ids)
        for end in range(size, max(size - _LONGEST_CHARACTER_TOKENS, self._shown), -1):
            text = self._decode(self._ids[:end])
            if not text.endswith(_REPLACEMENT):
                return end, text
        end = self._shown if size - self._shown < _LONGEST_CHARACTER_TOKENS else size
        return end, self._decode(self._ids[:end])

    def _show(self, end: int, text: str) -> str:
        """What `text`, that of the tokens before `end`, adds to what was shown."""
        before = self._decode(self._ids[: self._shown])
        self._ids = self._ids[max(end - _CONTEXT_TOKENS, 0) :]
        self._shown = min(end, _CONTEXT_TOKENS)
        return text[len(before) :]
