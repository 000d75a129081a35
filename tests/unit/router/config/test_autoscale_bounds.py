"""`--autoscale`: what it says, and what it must not say."""

from __future__ import annotations

import pytest

from router.config.flags.command_line import parse
from router.config.flags.text_settings import Bounds, WrongBounds, bounds_of
from router.config.flags.values import ConfigError


def test_each_role_has_its_own_bounds() -> None:
    assert bounds_of("decode=0:4 prefill=1:2") == {"decode": Bounds(0, 4), "prefill": Bounds(1, 2)}
    assert bounds_of(None) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("decode=4", "ROLE=LEAST:MOST"),
        ("both=1:2", "ROLE=LEAST:MOST"),
        ("decode=3:2", "the second number is the larger one"),
        ("decode=0:0", "1 or more"),
        ("decode=1:2 decode=1:3", "given twice"),
    ],
)
def test_other_words_are_refused(text: str, words: str) -> None:
    with pytest.raises(WrongBounds, match=words):
        bounds_of(text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--autoscale prefill=1:2", "no prefill workers in --mode mixed"),
        ("--autoscale decode=2:4", "--decode-workers 1 at the start is outside"),
        ("--autoscale decode=1", "--autoscale decode=1 is not"),
        ("--autoscale-cooldown 0", "above 0"),
    ],
)
def test_bounds_must_suit_the_other_settings(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(["--model", "m", *line.split()])
    assert words in str(caught.value.problems)
