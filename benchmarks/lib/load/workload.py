"""Workloads: prompts and arrival times, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.lengths import Fixed, Lengths, LogNormal, Uniform, parse_lengths

__all__ = [
    "Fixed",
    "ImageWork",
    "Lengths",
    "LogNormal",
    "Uniform",
    "Work",
    "are_long",
    "ids_of",
    "make_workload",
    "parse_lengths",
    "with_long_prompts",
    "words_of",
]

_FIRST_ID, _LAST_ID = 1_000, 30_000
"""Random prompts draw ids from here: past the special and byte tokens, and inside every vocabulary in use."""

_FREQUENT = (
    "the and for that with this from have not are was but they you all can one time people way day year "
    "work life world hand part place case week company system program question government number night "
    "point home water room mother area money story fact month lot right study book eye job word business"
)
_WORDS = _FREQUENT.split()
"""Frequent enough that nearly every tokenizer holds each of them, with its leading space, as one token."""


@dataclass(frozen=True, slots=True)
class Work:
    """One request to send."""

    arrival_s: float
    """Seconds after the run's start."""
    prompt: Sequence[int] | str
    max_tokens: int

    @property
    def content(self) -> Any:
        """Content of its message in a chat."""
        return self.prompt


@dataclass(frozen=True, slots=True)
class ImageWork(Work):
    """A chat of text after images."""

    images: tuple[str, ...] = ()
    """URLs."""

    @property
    def content(self) -> Any:
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}} for url in self.images
        ]
        return [*parts, {"type": "text", "text": self.prompt}]


def make_workload(
    *,
    count: int,
    rate: float,
    input_lengths: Lengths,
    output_lengths: Lengths,
    seed: int = 0,
    shared_prefix: int = 0,
    as_text: bool = False,
) -> list[Work]:
    """`count` requests in order of arrival; the same arguments always give the same requests.

    Arrivals are a Poisson process of `rate` requests a second; `math.inf` sends all at once. The first
    `shared_prefix` tokens of every prompt (at most all but one) are the same. Prompts are token ids, or
    with `as_text` words, for servers that take no ids: there a length is a close guess, not exact.
    """
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, count)
    arrivals = np.cumsum(gaps) - gaps[:1]  # the first arrives at once
    prompt_lengths = input_lengths.draw(rng, count)
    max_tokens = output_lengths.draw(rng, count)
    prefix = rng.integers(_FIRST_ID, _LAST_ID, shared_prefix)

    def prompt(length: int) -> list[int] | str:
        if as_text:
            return words_of(rng, length)
        shared = prefix[: length - 1]
        own = rng.integers(_FIRST_ID, _LAST_ID, length - len(shared))
        return [int(token) for token in np.concatenate([shared, own])]

    return [
        Work(float(arrival), prompt(length), limit)
        for arrival, length, limit in zip(arrivals, prompt_lengths, max_tokens, strict=True)
    ]


def with_long_prompts(
    *,
    count: int,
    rate: float,
    input_lengths: Lengths,
    output_lengths: Lengths,
    share: float,
    long_lengths: Lengths,
    seed: int = 0,
) -> list[Work]:
    """`make_workload`, but a `share` of the prompts, drawn at random, has `long_lengths`."""
    usual, long = (
        make_workload(count=count, rate=rate, input_lengths=each, output_lengths=output_lengths, seed=seed)
        for each in (input_lengths, long_lengths)
    )
    chosen = zip(usual, long, are_long(count, share, seed), strict=True)
    return [replace(work, prompt=other.prompt) if is_long else work for work, other, is_long in chosen]


def are_long(count: int, share: float, seed: int) -> list[bool]:
    """Which requests of `with_long_prompts` have a long prompt."""
    rng = random.Random(seed)
    return [rng.random() < share for _ in range(count)]


def words_of(rng: np.random.Generator, length: int) -> str:
    """About `length` tokens of English words."""
    return " ".join(_WORDS[index] for index in rng.integers(0, len(_WORDS), length))


def ids_of(text: str) -> list[int]:
    """The words of `words_of` as one token id each, the same for every model."""
    return [_FIRST_ID + _WORDS.index(word) for word in text.split()]
