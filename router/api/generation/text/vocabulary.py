"""The bytes of the tokens of a byte-level vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

_WORD_START: Final = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-F]{2})>")


def byte_table(spec: dict[str, Any], size: int) -> list[bytes] | None:
    """The bytes of every token id below `size`; b"" for special tokens and unused ids.

    `spec` is a parsed tokenizer.json. None if its decoder does not map each token to bytes independently of
    its neighbours (WordPiece, for instance).
    """
    to_bytes = decoder_of(spec.get("decoder"))
    vocabulary = spec["model"].get("vocab")
    if to_bytes is None or not isinstance(vocabulary, dict):
        return None
    table = [b""] * size
    for token, token_id in vocabulary.items():
        if token_id < size:
            table[token_id] = to_bytes(token)
    for added in spec.get("added_tokens", ()):
        if added["id"] < size:
            table[added["id"]] = b"" if added["special"] else to_bytes(added["content"])
    return table


def decoder_of(decoder: dict[str, Any] | None) -> Callable[[str], bytes] | None:
    """The function from tokens to bytes of a `decoder` of tokenizer.json; None if unknown."""
    if decoder is None:
        return None
    stages = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [stage["type"] for stage in stages]
    if kinds == ["ByteLevel"]:
        return _from_byte_level
    if "ByteLevel" in kinds:
        return None
    if kinds == ["Metaspace"] and stages[0]["replacement"] == _WORD_START:
        return _from_sentencepiece
    if kinds and kinds[0] == "Replace" and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        replace = stages[0]
        if replace["pattern"] == {"String": _WORD_START} and replace["content"] == " ":
            return _from_sentencepiece
    return None


def _from_byte_level(token: str) -> bytes:
    """GPT-2's scheme: every byte is written as a printable character."""
    try:
        return bytes([_BYTE_OF_CHARACTER[char] for char in token])
    except KeyError:  # an added token, stored as plain text
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    """Llama 2's scheme: a lower block for a space, and <0xE2> for bytes that no piece covers.

    The decoder also strips the space before the first word of a text. Here it is kept: an output continues
    its prompt, so a leading space belongs to it.
    """
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_WORD_START, " ").encode()


def _characters_of_bytes() -> dict[str, int]:
    """Printable Latin-1 maps to itself; the other 68 bytes, in order, map to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = _characters_of_bytes()
