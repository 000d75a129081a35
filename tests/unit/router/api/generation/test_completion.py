from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.generation.completion import Completion, OutputChunk
from router.api.generation.output.reasoning import ReasoningCounter, ReasoningParser
from router.api.generation.text.detokenizer import ByteDetokenizer
from router.dispatch.token_stream import Delta
from rpc.baton.v1.sampling_pb2 import (
    FINISH_REASON_ABORT,
    FINISH_REASON_LENGTH,
    FINISH_REASON_STOP,
    TokenLogprobs,
)

TABLE = [bytes([i]) for i in range(256)]
EOS = 0


def completion(*stops: str, ids: tuple[int, ...] = (), min_tokens: int = 0) -> Completion:
    return Completion(0, ByteDetokenizer(TABLE), stops=stops, stop_token_ids=ids, min_tokens=min_tokens)


def ids(text: str) -> list[int]:
    return list(text.encode())


def feed(made: Completion, deltas: list[Delta]) -> list[OutputChunk]:
    """Chunks up to the last."""
    chunks = []
    for delta in deltas:
        chunks.append(made.feed(delta))
        if made.finished:
            break
    return chunks


def test_tokens_become_text_and_are_counted() -> None:
    made = completion()
    chunks = feed(made, [Delta(ids("hé"), cached_tokens=3), Delta(ids("!"), finish=FINISH_REASON_LENGTH)])
    assert [chunk.text for chunk in chunks] == ["hé", "!"]
    assert (made.num_tokens, made.cached_tokens, made.finished) == (4, 3, True)


def test_the_token_that_ends_a_sequence_counts_but_is_not_shown() -> None:
    made = completion(ids=(ord("b"),))
    [chunk] = feed(made, [Delta([*ids("a"), ord("b")], finish=FINISH_REASON_STOP, stop_token=ord("b"))])
    assert (chunk.text, chunk.stop, chunk.finish, made.num_tokens) == ("a", ord("b"), FINISH_REASON_STOP, 2)


def test_eos_is_no_stop_reason() -> None:
    [chunk] = feed(completion(), [Delta([*ids("a"), EOS], finish=FINISH_REASON_STOP, stop_token=EOS)])
    assert (chunk.text, chunk.stop, chunk.finish) == ("a", None, FINISH_REASON_STOP)


@pytest.mark.parametrize("stops", [(), ("zzz",)])
def test_an_incomplete_character_at_the_end_is_sent(stops: tuple[str, ...]) -> None:
    [chunk] = feed(completion(*stops), [Delta(ids("é")[:1], finish=FINISH_REASON_LENGTH)])
    assert chunk.text == "�"


def test_a_stop_string_ends_the_completion_and_later_tokens_do_not_count() -> None:
    made = completion("END")
    logprobs = [TokenLogprobs(logprob=-i) for i in range(6)]
    chunks = feed(made, [Delta(ids("ok E")), Delta(ids("ND more")[:6], logprobs)])
    assert "".join(chunk.text for chunk in chunks) == "ok "
    assert (chunks[-1].finish, chunks[-1].stop) == (FINISH_REASON_STOP, "END")
    assert made.num_tokens == len("ok END")
    assert list(chunks[-1].logprobs) == logprobs[:2]


def test_a_stop_string_wins_over_the_end_by_length() -> None:
    [chunk] = feed(completion("END"), [Delta(ids("xEND"), finish=FINISH_REASON_LENGTH)])
    assert (chunk.text, chunk.finish) == ("x", FINISH_REASON_STOP)


def test_text_that_was_held_back_comes_with_the_last_chunk() -> None:
    chunks = feed(
        completion("END"), [Delta(ids("xEN")), Delta([EOS], finish=FINISH_REASON_STOP, stop_token=EOS)]
    )
    assert [chunk.text for chunk in chunks] == ["x", "EN"]


def test_a_stop_string_does_not_count_before_min_tokens() -> None:
    made = completion("a", min_tokens=4)
    chunks = feed(made, [Delta(ids("aaxbacd"))])
    assert (chunks[0].text, made.num_tokens) == ("aaxb", 5)


def test_an_aborted_completion_has_that_finish_reason() -> None:
    made = completion("END")
    made.feed(Delta(ids("xEN")))
    assert made.abort().finish == FINISH_REASON_ABORT
    assert made.finished


def reasoning(text: str, cuts: list[int], *stops: str, inside: bool = False) -> Completion:
    """A completion that was fed `text`, a byte a token, in deltas that end at `cuts`, and then EOS."""
    counter = ReasoningCounter(ReasoningParser(inside=inside))
    made = Completion(0, ByteDetokenizer(TABLE), stops=stops, parser=ReasoningParser(), counter=counter)
    tokens = [*ids(text), EOS]
    ends = [*sorted({cut for cut in cuts if cut < len(tokens)}), len(tokens)]
    for begin, end in pairwise([0, *ends]):
        finish = FINISH_REASON_STOP if end == len(tokens) else 0
        made.feed(Delta(tokens[begin:end], finish=finish, stop_token=EOS if finish else None))
        if made.finished:
            break
    return made


@pytest.mark.parametrize("stops", [(), ("zzz",), ("</b>",)])
@pytest.mark.parametrize(
    ("text", "inside", "counted"),
    [
        ("<think>hmm é</think>\n\nYes.", False, "<think>hmm é</think>"),
        (" \n<think>a</think>b</think>", False, " \n<think>a</think>"),
        ("hm</think>Yes", True, "hm</think>"),
        ("hm</think>Yes", False, ""),
        ("<think>cut off", False, "<think>cut off"),
        ("<thin", False, ""),
        ("No.", False, ""),
        ("", True, ""),
    ],
)
@given(cuts=st.lists(st.integers(1, 40)))
def test_reasoning_tokens_are_those_up_to_the_closing_tag_however_tokens_come(
    text: str, inside: bool, counted: str, stops: tuple[str, ...], cuts: list[int]
) -> None:
    made = reasoning(text, cuts, *stops, inside=inside)
    assert made.reasoning_tokens == len(ids(counted))
    assert made.num_tokens == len(ids(text)) + 1


@given(cuts=st.lists(st.integers(1, 40)))
def test_reasoning_tokens_after_a_stop_string_do_not_count(cuts: list[int]) -> None:
    made = reasoning("<think>one END two</think>three", cuts, "END")
    assert made.reasoning_tokens == made.num_tokens == len("<think>one END")


def test_a_token_with_the_end_of_the_tag_and_the_beginning_of_the_answer_is_reasoning() -> None:
    made = Completion(
        0,
        ByteDetokenizer([b"<think>a</th", b"ink>\n\nY", b"es"]),
        counter=ReasoningCounter(ReasoningParser()),
    )
    made.feed(Delta([0, 1, 2, 2]))
    assert (made.reasoning_tokens, made.num_tokens) == (2, 4)
