from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.generation.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from router.api.generation.text.tokenizer import Tokenizer
from router.api.generation.text.vocabulary import byte_table
from tests.unit.router.api.generation.text.tokenizers import byte_level, sentencepiece, word_piece

BYTE_LEVEL = byte_level()
BYTE_LEVEL_SIZE = BYTE_LEVEL.get_vocab_size()
SENTENCEPIECE = sentencepiece()
WORD_PIECE = word_piece()


def table_of(backend: object, size: int) -> list[bytes]:
    table = byte_table(json.loads(backend.to_str()), size)  # type: ignore[attr-defined]
    assert table is not None
    return table


BYTE_LEVEL_TABLE = table_of(BYTE_LEVEL, BYTE_LEVEL_SIZE)


def streamed(detokenizer: Detokenizer, ids: list[int], cuts: list[int]) -> str:
    """The text of `ids`, fed in pieces."""
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [detokenizer.feed(ids[begin:end]) for begin, end in pairwise(edges)]
    return "".join(pieces) + detokenizer.flush()


CUTS = st.lists(st.integers(0, 60), max_size=60)


@given(st.lists(st.integers(0, BYTE_LEVEL_SIZE - 1), max_size=60), CUTS)
def test_any_byte_level_tokens_in_any_pieces_read_as_the_library_reads_them(
    ids: list[int], cuts: list[int]
) -> None:
    assert streamed(ByteDetokenizer(BYTE_LEVEL_TABLE), ids, cuts) == BYTE_LEVEL.decode(ids)


@given(st.text(max_size=60), CUTS)
def test_any_text_survives_the_way_there_and_back(text: str, cuts: list[int]) -> None:
    ids = BYTE_LEVEL.encode(text).ids
    assert streamed(ByteDetokenizer(BYTE_LEVEL_TABLE), ids, cuts) == BYTE_LEVEL.decode(ids)
    without_added = not any(token_id >= 400 for token_id in ids)
    if without_added:
        assert BYTE_LEVEL.decode(ids) == text or "<" in text


@given(st.text(max_size=60), CUTS)
def test_sentencepiece_text_keeps_the_space_that_joins_it_to_the_prompt(text: str, cuts: list[int]) -> None:
    table = table_of(SENTENCEPIECE, SENTENCEPIECE.get_vocab_size())
    ids = [token_id for token_id in SENTENCEPIECE.encode(text).ids if token_id > 2]
    shown = streamed(ByteDetokenizer(table), ids, cuts)
    assert shown.removeprefix(" ") == SENTENCEPIECE.decode(ids)


def test_half_a_character_waits_for_its_other_half() -> None:
    detokenizer = ByteDetokenizer([b"\xe4\xbd", b"\xa0", b"!"])
    assert [detokenizer.feed([0]), detokenizer.feed([1]), detokenizer.feed([2])] == ["", "你", "!"]


def test_half_a_character_at_the_end_is_shown_as_a_replacement() -> None:
    detokenizer = ByteDetokenizer([b"\xe4\xbd"])
    assert detokenizer.feed([0]) == ""
    assert detokenizer.flush() == "�"


def test_special_tokens_and_rows_without_a_token_have_no_text() -> None:
    padded = table_of(BYTE_LEVEL, BYTE_LEVEL_SIZE + 10)
    special = BYTE_LEVEL.token_to_id("</s>")
    assert ByteDetokenizer(padded).feed([special, BYTE_LEVEL_SIZE + 5]) == ""


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.lists(st.integers(0, 9), max_size=8), CUTS)
def test_a_decoder_that_looks_at_neighbours_reads_the_same_in_pieces(
    ids: list[int], prompt: list[int], cuts: list[int]
) -> None:
    detokenizer = WindowDetokenizer(WORD_PIECE.decode, prompt)
    whole = WORD_PIECE.decode([*prompt, *ids])
    assert WORD_PIECE.decode(prompt) + streamed(detokenizer, ids, cuts) == whole


def bytes_as_ids(data: bytes) -> list[int]:
    """A token for every byte."""
    ids = [BYTE_LEVEL_TABLE.index(bytes([byte])) for byte in data]
    assert all(token_id >= 0 for token_id in ids)
    return ids


def window(prompt: str = "so: ") -> WindowDetokenizer:
    return WindowDetokenizer(BYTE_LEVEL.decode, bytes_as_ids(prompt.encode()))


class TestTheWindowOverTokensThatAreHalfCharacters:
    @pytest.mark.parametrize("prompt", ["", "a", "你", "long enough for the window"])
    def test_half_a_character_waits_for_its_other_half(self, prompt: str) -> None:
        detokenizer = window(prompt)
        fed = [detokenizer.feed([token_id]) for token_id in bytes_as_ids("x👋é".encode())]
        assert fed == ["x", "", "", "", "👋", "", "é"]
        assert detokenizer.flush() == ""

    def test_what_comes_with_half_a_character_is_shown_at_once(self) -> None:
        *ids, last = bytes_as_ids("a long text that ends in 你".encode())
        detokenizer = window()
        assert detokenizer.feed(ids) == "a long text that ends in "
        assert detokenizer.feed([last]) == "你"

    def test_half_a_character_at_the_end_is_shown_as_a_replacement(self) -> None:
        detokenizer = window()
        assert detokenizer.feed(bytes_as_ids(b"a\xe4\xbd")) == "a"
        assert detokenizer.flush() == "\ufffd"

    @pytest.mark.parametrize("piece", [1, 3, 8, 9, 20])
    def test_bytes_that_become_no_character_wait_for_seven_more_and_no_longer(self, piece: int) -> None:
        detokenizer = window()
        ids = bytes_as_ids(b"\x80" * 40)
        shown = held = 0
        for begin in range(0, 40, piece):
            fed = ids[begin : begin + piece]
            held += len(fed)
            text = detokenizer.feed(fed)
            assert text == "\ufffd" * len(text)
            assert len(text) == (held if held >= 8 else 0)
            shown, held = shown + len(text), held - len(text)
        assert shown + len(detokenizer.flush()) == 40

    @pytest.mark.parametrize(("strays", "shown"), [(7, "so"), (8, "so" + "\ufffd" * 8)])
    def test_such_bytes_hold_nothing_else_back(self, strays: int, shown: str) -> None:
        assert window().feed(bytes_as_ids(b"so" + b"\x80" * strays)) == shown

    def test_a_character_after_bytes_that_became_none_is_whole(self) -> None:
        detokenizer = window()
        detokenizer.feed(bytes_as_ids(b"\x80" * 8))
        assert [detokenizer.feed([token_id]) for token_id in bytes_as_ids("你".encode())] == ["", "", "你"]

    @given(st.text(max_size=40), st.text(max_size=8), CUTS)
    def test_any_text_survives_in_any_pieces(self, text: str, prompt: str, cuts: list[int]) -> None:
        assert streamed(window(prompt), bytes_as_ids(text.encode()), cuts) == text

    @given(st.text(max_size=40), CUTS)
    def test_no_piece_shows_a_replacement_that_the_text_has_not(self, text: str, cuts: list[int]) -> None:
        plain = text.replace("\ufffd", "")
        ids = bytes_as_ids(plain.encode())
        edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
        detokenizer = window()
        pieces = [detokenizer.feed(ids[begin:end]) for begin, end in pairwise(edges)]
        assert "".join(pieces) == plain


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_the_table_is_used_where_tokens_are_bytes(make: object) -> None:
    backend = make()  # type: ignore[operator]
    detokenizer = Tokenizer(backend, vocab_size=1000).detokenizer([1, 2])
    assert isinstance(detokenizer, ByteDetokenizer)


def test_the_window_is_used_where_they_are_not() -> None:
    detokenizer = Tokenizer(WORD_PIECE, vocab_size=10).detokenizer([1])
    assert isinstance(detokenizer, WindowDetokenizer)
    assert detokenizer.feed([3]) + detokenizer.feed([4]) == " jumps"


def test_tokens_are_named_by_their_bytes() -> None:
    tokenizer = Tokenizer(byte_level(), vocab_size=1000)
    assert tokenizer.token_bytes(BYTE_LEVEL.token_to_id("</s>")) == b"</s>"
    assert tokenizer.token_bytes(BYTE_LEVEL.token_to_id("Ġ")) == b" "
    assert tokenizer.token_bytes(999) == b""
