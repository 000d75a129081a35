"""A text's least number of tokens: never more than it has, whatever the tokenizer does to text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from router.api.generation.text.tokenizer import Tokenizer
from tests.unit.router.api.generation.text.tokenizers import byte_level, sentencepiece, word_piece


def composing() -> tokenizers.Tokenizer:
    """Like Qwen's: text is composed first."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def gaps() -> tokenizers.Tokenizer:
    """Like SmolLM2's, whose corpus lacked some bytes: they have no token and vanish."""
    spec = json.loads(byte_level().to_str())
    spec["model"]["vocab"] = {token: i for i, token in enumerate("abcdefghijkl\u0120\u00c3")}
    spec["model"]["merges"] = []
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


COMPOSED = st.sampled_from([*"aé \n", "\u1fbe\u0308\u0301", "\u212a", "<s>", "<tool call>", "quick brown"])


@pytest.mark.parametrize("make", [byte_level, composing, gaps, sentencepiece])
@given(text=st.lists(COMPOSED | st.characters(exclude_categories=["Cs"]), max_size=60).map("".join))
def test_no_text_has_fewer_tokens_than_its_bound(make: Callable[[], tokenizers.Tokenizer], text: str) -> None:
    tokenizer = Tokenizer(make(), vocab_size=500)
    assert tokenizer.fewest_tokens(text) <= len(tokenizer._encode_now(text, add_special_tokens=False))
    assert tokenizer.fewest_tokens("a" * 1000) > 10


def test_the_bound_is_exact_for_the_longest_token() -> None:
    backend = byte_level()
    backend.add_tokens(["x" * 100])
    tokenizer = Tokenizer(backend, vocab_size=500)
    assert tokenizer.fewest_tokens("x" * 5000) == len(tokenizer._encode_now("x" * 5000, False)) == 50


def unbounded() -> dict[str, tokenizers.Tokenizer]:
    """Each may make one token of a text of any length, or none."""
    swallowing, stripping, removing = byte_level(), byte_level(), byte_level()
    swallowing.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    stripping.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    removing.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    composing_gaps = gaps()
    composing_gaps.normalizer = normalizers.NFC()
    return {
        "an added token that takes spaces along": swallowing,
        "a normalizer that strips": stripping,
        "words without spaces": removing,
        "bytes that vanish once they are composed": composing_gaps,
        "unknown words": word_piece(),
    }


@pytest.mark.parametrize("backend", unbounded().values(), ids=unbounded())
def test_where_text_may_vanish_there_is_no_bound(backend: tokenizers.Tokenizer) -> None:
    assert Tokenizer(backend, vocab_size=500).fewest_tokens("x" * 10_000) == 0
