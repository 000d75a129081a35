"""A lower bound of a text's tokens from its length, so that a text that cannot fit is not encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from router.api.generation.text.vocabulary import decoder_of

_NFC_SHRINKS: Final = 4
"""U+1FBE U+0308 U+0301 has seven bytes and is composed to U+0390, which has two; no text shrinks more."""
_OF_UTF8: Final = frozenset({*range(0xC0), *range(0xC2, 0xF5)})
"""Bytes that occur in UTF-8."""


@dataclass(frozen=True, slots=True)
class TokenBound:
    bytes_per_token: int
    """Largest number of UTF-8 bytes per token."""
    dropped: bytes = b""
    """Bytes without a token, which the tokenizer drops."""

    @classmethod
    def of(cls, spec: dict[str, Any]) -> TokenBound | None:
        """The bound of a parsed tokenizer.json.

        None if a step before the vocabulary may drop text, or if a token may represent text of any length: an
        unknown word, or an added token that absorbs the spaces around it.
        """
        model, added = spec["model"], spec.get("added_tokens", ())
        to_bytes = decoder_of(spec.get("decoder"))
        shrinks = _shrinking_of(spec.get("normalizer"))
        if model["type"] != "BPE" or to_bytes is None or shrinks is None:
            return None
        if any(token["lstrip"] or token["rstrip"] for token in added):
            return None
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            return None
        kinds = _kinds_of(spec.get("pre_tokenizer"))
        if kinds is None or not ("ByteLevel" in kinds or model.get("byte_fallback")):
            return None
        pieces = {to_bytes(token) for token in model["vocab"]}
        dropped = bytes(byte for byte in _OF_UTF8 if bytes([byte]) not in pieces)
        if dropped and (shrinks > 1 or "ByteLevel" not in kinds):
            return None
        contents = (token["content"].encode() for token in added)
        return cls(shrinks * max(map(len, (*pieces, *contents))), dropped)

    def fewest(self, text: str) -> int:
        """A lower bound of the tokens of `text`; takes about a nanosecond per character."""
        kept = text.encode().translate(None, self.dropped)
        return -(-len(kept) // self.bytes_per_token)


def _shrinking_of(normalizer: dict[str, Any] | None) -> int | None:
    """The largest factor by which normalization shrinks a text, in bytes; None if unknown."""
    factor = 1
    for stage in _stages(normalizer, "normalizers"):
        if stage["type"] == "NFC":
            factor *= _NFC_SHRINKS
        elif stage["type"] != "Prepend" and not (
            stage["type"] == "Replace" and stage["pattern"] == {"String": " "} and stage["content"]
        ):
            return None
    return factor


def _kinds_of(pre_tokenizer: dict[str, Any] | None) -> set[str] | None:
    """The types of the stages; None if one may drop text."""
    stages = _stages(pre_tokenizer, "pretokenizers")
    for stage in stages:
        removes = stage["type"] == "Split" and stage["behavior"] == "Removed"
        if removes or stage["type"] not in ("ByteLevel", "Digits", "Metaspace", "Split"):
            return None
    return {stage["type"] for stage in stages}


def _stages(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """A step of tokenizer.json, expanded if it is a sequence."""
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [stage for part in step[inner] for stage in _stages(part, inner)]
