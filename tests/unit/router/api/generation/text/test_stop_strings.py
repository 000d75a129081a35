from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from router.api.generation.text.stop_strings import StopFinder

TEXTS = st.text("ab-", max_size=40)
STOPS = st.lists(st.text("ab-", min_size=1, max_size=9), min_size=1, max_size=3)


def brute_force(text: str, stops: list[str]) -> tuple[str, str | None]:
    """What is shown of `text`, and the stop string that ended it."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in pairwise(edges)]


@example("aabaaabaaac", ["aabaaac"], [])  # borders of borders
@given(TEXTS, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_any_cut_of_the_text_gives_what_brute_force_gives_on_the_whole(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    finder = StopFinder(stops)
    shown = ""
    for piece in pieces_of(text, cuts):
        shown += finder.feed(piece)
        assert text.startswith(shown)
        if finder.matched:
            break
    else:
        shown += finder.flush()
    assert (shown, finder.matched) == brute_force(text, stops)


@given(TEXTS, STOPS)
def test_text_is_held_back_only_while_it_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = finder.feed(text)
    if finder.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_that_spans_many_pieces_is_never_shown() -> None:
    finder = StopFinder(["</answer>"])
    assert [finder.feed(piece) for piece in ("42</", "ans", "wer", ">ignored")] == ["42", "", "", ""]
    assert finder.matched == "</answer>"


def test_a_false_start_is_shown_as_soon_as_it_is_known_to_be_one() -> None:
    finder = StopFinder(["aab"])
    assert finder.feed("aa") == ""
    assert finder.feed("a") == "a"
    assert finder.feed("c") == "aac"


def test_what_is_held_back_at_the_end_is_not_lost() -> None:
    finder = StopFinder(["\n\nQ:"])
    assert finder.feed("answer\n\n") == "answer"
    assert finder.flush() == "\n\n"
    assert finder.flush() == ""
