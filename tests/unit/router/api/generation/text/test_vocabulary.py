"""The bytes of a vocabulary's tokens, where the model has fewer or more ids than the tokenizer."""

from __future__ import annotations

from router.api.generation.text.vocabulary import byte_table

SPEC = {
    "decoder": {"type": "ByteLevel"},
    "model": {"vocab": {"a": 0, "b": 1, "c": 2}},
    "added_tokens": [
        {"id": 3, "content": "<x>", "special": False},
        {"id": 4, "content": "</s>", "special": True},
    ],
}


def test_ids_beyond_the_models_are_left_out_and_those_without_a_token_are_empty() -> None:
    assert byte_table(SPEC, 2) == [b"a", b"b"]
    assert byte_table(SPEC, 3) == [b"a", b"b", b"c"]
    assert byte_table(SPEC, 4) == [b"a", b"b", b"c", b"<x>"]
    assert byte_table(SPEC, 6) == [b"a", b"b", b"c", b"<x>", b"", b""]
